// SPDX-License-Identifier: Apache-2.0
#include "late_writer.hpp"

#include <weft/weft.hpp>

#include <cstdio>

#include "kit/buffers.hpp"
#include "kit/tell.hpp"

namespace weft::test {
namespace {

using namespace std::chrono_literals;

constexpr std::byte of_writer{0xee};
constexpr std::byte of_owner{0x55};
constexpr std::size_t smallest_write = 8;
// Longer than a writer needs to begin.
constexpr auto patience = 5s;
constexpr auto lent_for_at_first = 100ms;
constexpr unsigned most_lost = 20;

// The deadline is the way that takes memory back while nobody is about to.
enum class way : std::uint8_t { revoke, deadline, release, close };
constexpr std::array ways{std::pair{way::revoke, "by revoke()"}, std::pair{way::deadline, "at its deadline"},
                          std::pair{way::release, "by releasing its region"},
                          std::pair{way::close, "with its connection"}};

std::string with_any_port(const std::string& address) {
  std::string all;
  for (std::size_t begin = 0; begin <= address.size();) {
    const std::size_t end = std::min(address.find('+', begin), address.size());
    const std::string part = address.substr(begin, end - begin);
    const bool is_v6 = part.find(':') != std::string::npos && !part.starts_with('[');
    all += (all.empty() ? "" : "+") + (is_v6 ? "[" + part + "]" : part) + ":0";
    begin = end + 1;
  }
  return all;
}

bool holds_only(std::span<const std::byte> memory, std::byte what) {
  std::vector<std::byte> copy(memory.size());
  mr::load_shared(memory, copy);
  return std::all_of(copy.begin(), copy.end(), [&](std::byte each) { return each == what; });
}

// ---- the end that writes ----

class writer : private immovable {
 public:
  writer(const device_maker& open, const late_writing& how, std::string address)
      : open_(open), how_(how), address_(std::move(address)), thread_([this] { work(); }) {}
  ~writer() {
    stop();
    thread_.join();
  }

  void stop() noexcept { stopped_ = true; }
  /// Whether its thread needs the owner's no more.
  [[nodiscard]] bool is_done() const noexcept { return done_; }
  [[nodiscard]] std::uint64_t writes() const noexcept { return writes_; }

 private:
  void work() noexcept {
    try {
      connect_and_write();
    } catch (const std::exception&) {  // the owner waits for nobody then, and says so
    }
    done_ = true;
  }

  void connect_and_write() {
    net::device device = open_();
    executor home;
    const auto all = [&]() -> task<> {
      const auto body = [&](scope& tasks) -> task<> {
        for (unsigned i = 0; i < how_.connections; ++i) tasks.spawn(write_on_and_on(device));
        co_return;
      };
      co_await with_scope(on_failure::report, body);
    };
    home.run(all());
  }

  // Each connection is good for one time that memory is taken back.
  task<> write_on_and_on(net::device& device) {
    const auto source = co_await filled_with(device.pool(), how_.bytes, of_writer);
    while (!stopped_) {
      try {
        net::connection peer = co_await device.connect(address_);
        const auto there = co_await hear_region(peer);
        const auto body = [&](scope& tasks) -> task<> {
          for (unsigned i = 0; i < how_.writes; ++i) tasks.spawn(write(peer, source, there, i));
          co_return;
        };
        co_await with_scope(on_failure::report, body);
        peer.abort();
      } catch (const error&) {  // there is nobody to connect to any more, or the memory is gone already
      }
    }
  }

  // Until it is refused.
  task<> write(net::connection& peer, const mr::buffer& source, const mr::remote_region& there, unsigned number) {
    const std::array sizes{smallest_write, std::size_t{512}, std::size_t{4096}, how_.bytes};
    const std::size_t bytes = std::min(sizes[number % sizes.size()], how_.bytes);
    try {
      for (std::size_t offset = 0; !stopped_; offset = (offset + bytes) % (how_.bytes - bytes + 1)) {
        const mr::slice part = source.slice(0, bytes);
        const mr::remote_slice target = there.slice(offset, bytes);
        co_await peer.write(part, target);
        ++writes_;
        co_await yield();
      }
    } catch (const error&) {
    }
  }

  const device_maker& open_;
  const late_writing& how_;
  const std::string address_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> done_{false};
  std::atomic<std::uint64_t> writes_{0};
  std::thread thread_;
};

// ---- the end whose memory it is ----

class owner {
 public:
  owner(net::device& device, const late_writing& how, late_writing_result& result) noexcept
      : device_(device), how_(how), result_(result) {}

  // One time: a connection of its own is let in, written by, and shut out.
  task<> lend(net::listener& listener, way how) {
    bool is_done = false;
    while (!is_done) {
      try {
        is_done = co_await lend_to_next(listener, how);
      } catch (const error& failure) {
        // Whoever is too slow to let go of memory loses its connection, and memory of one is let go of by all.
        const bool is_slow =
            std::string_view(failure.what()).find("does not let go of memory") != std::string_view::npos;
        if (failure.code() != errc::protocol_error || !is_slow || ++result_.times_lost > most_lost) throw;
      }
    }
  }

 private:
  // False if that has to be done again.
  task<bool> lend_to_next(net::listener& listener, way how) {
    auto came = co_await listener.accept();
    if (!came) throw std::logic_error("the listener has closed");
    net::connection peer = std::move(*came);
    if (how != way::release) co_return co_await lend_buffer(std::move(peer), how);
    co_await lend_region(std::move(peer));
    co_return true;
  }

  // False if the machine was too slow to write in the time for which it was lent: the next connection has longer.
  task<bool> lend_buffer(net::connection peer, way how) {
    auto open = co_await expose(peer, how);
    const std::span<const std::byte> bytes = open.memory().bytes();
    co_await tell(peer, device_.pool(), open.remote());
    const bool was_written = co_await until_written(bytes, &open);
    if (how == way::close) peer.abort();
    if (how == way::deadline || how == way::close) static_cast<void>(co_await open.ended());
    auto back = co_await open.revoke();
    const bool was_too_short = how == way::deadline && !was_written && lent_for_ < patience;
    if (was_too_short) {
      lent_for_ *= 2;
    } else {
      co_await watch(back.bytes(), was_written);
    }
    peer.abort();  // while the memory is there, whatever may still be written
    co_return !was_too_short;
  }

  // A machine may be too slow to open it in the time for which it is to be lent, too.
  task<net::exposure> expose(net::connection& peer, way how) {
    for (;; lent_for_ *= 2) {
      auto memory = co_await zeroed(device_.pool(), how_.bytes);
      const time_point until = how == way::deadline ? std::chrono::steady_clock::now() + lent_for_ : time_point::max();
      try {
        co_return co_await peer.expose(std::move(memory), mr::usage::write_dst, {.until = until});
      } catch (const error& failure) {
        if (how != way::deadline || failure.code() != errc::timed_out) throw;
      }
    }
  }

  // What a program registers for remote use is open to all connections of the device.
  task<> lend_region(net::connection peer) {
    std::vector<std::byte> memory(how_.bytes);
    const mr::registration_options purpose{.usage = mr::usage::write_dst};
    auto region = co_await device_.register_memory(std::span<std::byte>(memory), purpose);
    co_await tell(peer, device_.pool(), region.remote());
    const bool was_written = co_await until_written(memory, nullptr);
    co_await region.release();
    co_await watch(memory, was_written);
    peer.abort();
  }

  // Not longer than the memory is lent. Every writer begins at its beginning.
  task<bool> until_written(std::span<const std::byte> memory, const net::exposure* loan) {
    const std::span<const std::byte> beginning = memory.first(std::min(memory.size(), smallest_write));
    const time_point latest = std::chrono::steady_clock::now() + patience;
    while (holds_only(beginning, std::byte{0})) {
      const bool is_over = loan != nullptr && loan->ended_by() != net::exposure_end::open;
      if (is_over || std::chrono::steady_clock::now() >= latest) co_return false;
      co_await sleep_for(100us);
    }
    co_return true;
  }

  // The memory is this end's alone: what it writes there stays.
  task<> watch(std::span<std::byte> memory, bool was_written) {
    ++result_.times;
    if (!was_written) ++result_.times_unwritten;
    std::fill(memory.begin(), memory.end(), of_owner);
    const time_point end = std::chrono::steady_clock::now() + how_.watch;
    bool is_late = false;
    do {
      co_await sleep_for(200us);
      is_late = !holds_only(memory, of_owner);
    } while (!is_late && std::chrono::steady_clock::now() < end);
    if (is_late) ++result_.times_late;
  }

  net::device& device_;
  const late_writing& how_;
  late_writing_result& result_;
  std::chrono::milliseconds lent_for_ = lent_for_at_first;
};

task<> try_way(net::device& device, net::listener& listener, const late_writing& how, way which,
               late_writing_result& result) {
  owner mine(device, how, result);
  for (unsigned round = 0; round < how.rounds && result.why_not.empty(); ++round) {
    const auto body = [&](scope& tasks) -> task<> {
      for (unsigned i = 0; i < how.connections; ++i) tasks.spawn(mine.lend(listener, which));
      co_return;
    };
    try {
      co_await with_scope(on_failure::stop_siblings, body);
    } catch (const error& failure) {
      if (failure.code() != errc::not_supported) throw;
      result.why_not = failure.what();
    }
  }
}

}  // namespace

std::vector<late_writing_result> write_late(const device_maker& open, const late_writing& how) {
  std::vector<late_writing_result> all;
  net::device device = open();
  executor home;
  const auto script = [&]() -> task<> {
    net::listener listener = co_await device.listen(with_any_port(how.address));
    writer peer(open, how, std::string(listener.address()));
    std::exception_ptr failure;
    try {
      for (const auto& [which, words] : ways) {
        all.push_back({.way = words});
        const std::uint64_t before = peer.writes();
        co_await try_way(device, listener, how, which, all.back());
        all.back().writes = peer.writes() - before;
      }
    } catch (...) {  // the writer's thread needs this one to come to its end
      failure = std::current_exception();
    }
    peer.stop();
    listener.close();
    while (!peer.is_done()) co_await sleep_for(1ms);
    if (failure) std::rethrow_exception(failure);
  };
  home.run(script());
  return all;
}

bool print_late_writing(const std::vector<late_writing_result>& all) {
  std::printf("%-26s %8s %12s %8s\n", "memory was taken back", "times", "writes", "late");
  unsigned late = 0;
  unsigned lost = 0;
  bool is_proof = true;
  for (const late_writing_result& each : all) {
    if (!each.why_not.empty()) {
      std::printf("%-26s not on this device: %s\n", each.way.c_str(), each.why_not.c_str());
      continue;
    }
    std::printf("%-26s %8u %12llu %8u\n", each.way.c_str(), each.times, static_cast<unsigned long long>(each.writes),
                each.times_late);
    late += each.times_late;
    lost += each.times_lost;
    is_proof = is_proof && each.times_unwritten < each.times;
  }
  if (lost != 0) std::printf("Connections lost because a peer was too slow to let go of memory: %u\n", lost);
  if (late != 0) {
    std::printf("Memory that had been taken back was written %u times: its owner cannot use it safely here.\n", late);
  } else if (!is_proof) {
    std::printf("No write has come before the memory was taken back, which proves nothing.\n");
  } else {
    std::printf("No write landed in memory that had been taken back.\n");
  }
  return late == 0 && is_proof;
}

}  // namespace weft::test

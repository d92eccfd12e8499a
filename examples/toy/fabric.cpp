// SPDX-License-Identifier: Apache-2.0
#include "fabric.hpp"

#include <weft/net/link/live_statistics.hpp>
#include <weft/net/link/peer_words.hpp>
#include <weft/net/link/try_addresses.hpp>
#include <weft/runtime/sync/event.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "keys.hpp"
#include "link.hpp"

namespace weft::toy {
namespace {

// ---- set-up ----

/// A peer that wants to connect, as both sides see it. Set-ups take locks and allocate; links do not.
struct set_up {
  enum class answer : std::uint8_t { none, accepted, rejected };

  std::mutex mutex;
  executor_core* connector = executor_core::current();  // null once it does not wait any more
  answer said = answer::none;
  std::vector<std::byte> private_data;  // of the answer
  std::shared_ptr<wire> both;

  event answered;  // on the connector's executor
  std::string from;
  std::vector<std::byte> asked;  // the private data of the request
  std::shared_ptr<domain> memory;
  std::uint16_t receives = 0;
  std::uint16_t incoming_reads = 0;
  std::uint16_t outgoing_reads = 0;

  [[nodiscard]] bool is_waited_for() {
    const std::lock_guard lock(mutex);
    return connector != nullptr;
  }
};

void answer(const std::shared_ptr<set_up>& who, set_up::answer what, std::span<const std::byte> data) {
  const std::lock_guard lock(who->mutex);
  if (who->connector == nullptr || who->said != set_up::answer::none) return;
  who->private_data.assign(data.begin(), data.end());
  who->said = what;
  who->connector->post([who] { who->answered.set(); });
}

/// Peers that have come to a listener. Kept by it, by the table and by those who wait in next(). They are of this
/// process, so that nothing bounds them; listen_options::max_half_open is for strangers.
struct arrivals {
  std::mutex mutex;
  std::deque<std::shared_ptr<set_up>> waiting;
  bool closed = false;

  executor_core* home = executor_core::current();
  event changed;  // on `home`
  std::string name;
  net::set_up_statistics* counts = nullptr;
};

/// Who listens in this process, by port.
struct port_table {
  std::mutex mutex;
  std::map<std::uint16_t, std::shared_ptr<arrivals>> all;
  std::uint16_t next = 40'000;

  static port_table& get() {
    static port_table only;
    return only;
  }
  [[nodiscard]] std::uint16_t draw() {  // under the mutex
    while (next < 40'000 || all.contains(next)) ++next;
    return next++;
  }
};

void knock(const std::shared_ptr<arrivals>& at, const std::shared_ptr<set_up>& who) {
  const std::lock_guard lock(at->mutex);
  if (at->closed) throw system_error(ECONNREFUSED, "connect");
  at->waiting.push_back(who);
  at->home->post([at] { at->changed.set(); });
}

class request final : public net::link_request {
 public:
  request(std::shared_ptr<set_up> who, std::shared_ptr<domain> own) : who_(std::move(who)), own_(std::move(own)) {}
  ~request() override {
    try {
      answer(who_, set_up::answer::rejected, {});
    } catch (const std::bad_alloc&) {  // then the peer's time runs out
    }
  }

  [[nodiscard]] std::string_view peer() const noexcept override { return who_->from; }
  [[nodiscard]] std::span<const std::byte> private_data() const noexcept override { return who_->asked; }

  task<std::unique_ptr<net::link>> accept(const net::set_up_options& options) override {
    auto both = std::make_shared<wire>(who_->memory, who_->receives, own_, options.max_receives);
    both->outgoing_reads = {std::min(who_->outgoing_reads, options.incoming_reads),
                            std::min(options.outgoing_reads, who_->incoming_reads)};
    auto ready = std::make_unique<link>(both, 1, who_->from);
    {
      const std::lock_guard lock(who_->mutex);
      if (who_->connector == nullptr) throw error(errc::peer_vanished, "the peer waits no more");
      who_->both = std::move(both);
    }
    answer(who_, set_up::answer::accepted, options.private_data);
    co_return ready;
  }

  task<> reject(std::span<const std::byte> data) override {
    answer(who_, set_up::answer::rejected, data);
    co_return;
  }

 private:
  std::shared_ptr<set_up> who_;
  std::shared_ptr<domain> own_;
};

class listener final : public net::link_listener {
 public:
  listener(const socket_address& at, std::shared_ptr<domain> own, const net::listen_options& options)
      : own_(std::move(own)), all_(std::make_shared<arrivals>()), port_(at.port()) {
    all_->counts = options.counts;
    port_table& ports = port_table::get();
    const std::lock_guard lock(ports.mutex);
    if (port_ == 0) port_ = ports.draw();
    const std::string given = at.to_string();
    all_->name = fmt::format("{}:{}", given.substr(0, given.rfind(':')), port_);
    if (!ports.all.emplace(port_, all_).second) throw system_error(EADDRINUSE, "listen");
  }
  ~listener() override { listener::close(); }

  [[nodiscard]] std::string_view address() const noexcept override { return all_->name; }
  [[nodiscard]] task<std::unique_ptr<net::link_request>> next() override { return next(all_, own_); }

  void close() noexcept override {
    {
      port_table& ports = port_table::get();
      const std::lock_guard lock(ports.mutex);
      const auto found = ports.all.find(port_);
      if (found != ports.all.end() && found->second == all_) ports.all.erase(found);
    }
    std::deque<std::shared_ptr<set_up>> rejected;
    {
      const std::lock_guard lock(all_->mutex);
      if (std::exchange(all_->closed, true)) return;
      rejected.swap(all_->waiting);
    }
    for (const auto& who : rejected) answer(who, set_up::answer::rejected, {});
    if (all_->home->belongs_to_this_thread()) return all_->changed.set();
    all_->home->post([all = all_] { all->changed.set(); });
  }

 private:
  // The listener may go while somebody waits.
  static task<std::unique_ptr<net::link_request>> next(std::shared_ptr<arrivals> all, std::shared_ptr<domain> own) {
    if (!all->home->on_own_thread())
      throw error(errc::wrong_thread, "call a listener on the executor on which it was made");
    for (;;) {
      all->changed.reset();
      std::shared_ptr<set_up> who;
      {
        const std::lock_guard lock(all->mutex);
        if (all->closed) co_return nullptr;
        if (!all->waiting.empty()) {
          who = std::move(all->waiting.front());
          all->waiting.pop_front();
        }
      }
      if (who == nullptr) {
        co_await all->changed.wait();
      } else if (who->is_waited_for()) {
        co_return std::make_unique<request>(std::move(who), std::move(own));
      } else {
        net::set_up_statistics::count(all->counts->requests_failed);
      }
    }
  }

  std::shared_ptr<domain> own_;
  std::shared_ptr<arrivals> all_;
  std::uint16_t port_;
};

// Whatever ends the wait, nobody answers into it afterwards.
class patience {
 public:
  explicit patience(std::shared_ptr<set_up> who) noexcept : who_(std::move(who)) {}
  patience(const patience&) = delete;
  patience& operator=(const patience&) = delete;
  ~patience() {
    std::shared_ptr<wire> unused;
    {
      const std::lock_guard lock(who_->mutex);
      who_->connector = nullptr;
      unused = std::move(who_->both);
    }
    if (unused == nullptr) return;
    unused->ends[0].break_off(errc::peer_vanished, "the peer waits no more");
    unused->ends[1].ring_bell();
  }

  [[nodiscard]] std::shared_ptr<wire> take_wire() {
    const std::lock_guard lock(who_->mutex);
    return std::move(who_->both);
  }

 private:
  std::shared_ptr<set_up> who_;
};

class transport final : public net::transport {
 public:
  transport() : domain_(std::make_shared<toy::domain>()), base_(domain_) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "toy"; }
  [[nodiscard]] const std::shared_ptr<mr::domain>& shared_domain() const noexcept override { return base_; }
  [[nodiscard]] net::native_features features() const noexcept override { return {.atomics = true, .immediate = true}; }

  [[nodiscard]] task<net::new_link> connect(std::string_view address, const net::set_up_options& options) override {
    const std::vector<socket_address> sources = co_await net::look_up_source(options.source, options.deadline);
    const auto attempt = [&](const socket_address& candidate, time_point deadline) {
      return connect_to(candidate, deadline, options);
    };
    co_return co_await net::try_addresses(address, false, options.deadline, attempt);
  }

  [[nodiscard]] task<std::unique_ptr<net::link_listener>> listen(std::string_view address,
                                                                 const net::listen_options& options) override {
    const auto attempt = [&](const socket_address& candidate, time_point) -> task<std::unique_ptr<net::link_listener>> {
      co_return std::make_unique<listener>(candidate, domain_, options);
    };
    co_return co_await net::try_addresses(address, true, time_point::max(), attempt);
  }

 private:
  task<net::new_link> connect_to(const socket_address& target, time_point deadline,
                                 const net::set_up_options& options) {
    auto who = std::make_shared<set_up>();
    who->asked.assign(options.private_data.begin(), options.private_data.end());
    who->memory = domain_;
    who->receives = options.max_receives;
    who->incoming_reads = options.incoming_reads;
    who->outgoing_reads = options.outgoing_reads;
    std::shared_ptr<arrivals> at;
    {
      port_table& ports = port_table::get();
      const std::lock_guard lock(ports.mutex);
      static std::uint64_t connects = 0;
      who->from = fmt::format("toy-{}:{}", ++connects, 1);
      const auto found = ports.all.find(target.port());
      if (found == ports.all.end()) throw system_error(ECONNREFUSED, "connect");
      at = found->second;
    }
    knock(at, who);
    patience waiting(who);
    co_await with_deadline(deadline, who->answered.wait());
    if (who->said == set_up::answer::rejected) throw net::rejection(who->private_data, "wait for the answer");
    auto ready = std::make_unique<link>(waiting.take_wire(), 0, target.to_string());
    co_return net::new_link(std::move(ready), std::move(who->private_data));
  }

  std::shared_ptr<toy::domain> domain_;
  std::shared_ptr<mr::domain> base_;
};

}  // namespace

std::unique_ptr<net::transport> open_transport() { return std::make_unique<transport>(); }

}  // namespace weft::toy

// SPDX-License-Identifier: Apache-2.0
// weft itself, among the others. `weft-conformance late-writer` asks it more, on any device.
#include <weft/weft.hpp>

#include "adapter.hpp"

namespace late_writer {
namespace {

using namespace weft;

constexpr std::string_view revoked = "exposure::revoke() has ended";
constexpr std::string_view released = "region::release() has ended";
constexpr std::string_view ended = "exposure::ended(), after abort()";
constexpr std::string_view stopped = "read() was stopped: errc::canceled";
constexpr std::string_view no_receive = "recv_into() was stopped: errc::canceled";

constexpr std::array ways{
    way{operation::put, moment::during, revoked, documented::excluded, "exposure.hpp"},
    way{operation::put, moment::during, released, documented::excluded, "security.md"},
    way{operation::put, moment::during, ended, documented::excluded, "exposure.hpp"},
    way{operation::receive, moment::before, no_receive, documented::excluded, "connection.hpp", true},
    way{operation::get, moment::during, stopped, documented::excluded, "connection.hpp", true},
};

constexpr std::uint32_t message_size = 65'536;

class weft_end final : public end {
 public:
  weft_end(const std::string& transport, const part& mine) : end(mine), device_(net::device::open(transport)) {
    const auto open = [this]() -> task<> {
      if (is_owner) listener_ = co_await device_.listen("127.0.0.1:0");
      region_ = co_await device_.register_memory(memory, {.usage = usage()});
    };
    home_.run(open());
  }

  std::string describe() override { return listener_ ? std::string(listener_->address()) : "the peer"; }

  void meet(const std::string& described) override {
    const auto join = [&]() -> task<> {
      const net::connection_options options{.receive_size = message_size};
      if (listener_) {
        link_ = co_await listener_->accept(options);
      } else {
        link_ = co_await device_.connect(described, options);
      }
      if (lends()) {
        const bool is_window = how.sign != released;
        if (is_window) lent_ = co_await link_->expose(region_.slice(), remote_use());
        const auto key = is_window ? lent_.remote().pack() : region_.remote().pack();
        co_await link_->send_bytes(key);
      } else if (!is(operation::receive)) {
        const auto key = co_await link_->recv_or_throw();
        theirs_ = mr::remote_region::unpack(key.bytes());
      }
    };
    home_.run(join());
  }

  void turn() override {
    const auto once = [this]() -> task<> {
      co_await yield();
      if (is_owner || is(operation::get) || is_sent_) co_return;
      is_sent_ = is(operation::receive);
      if (is_sent_) {
        co_await link_->send_bytes(memory.first(std::min<std::size_t>(memory.size(), message_size)));
      } else {
        const mr::slice source = region_.slice();
        const mr::remote_slice target = theirs_->slice(0, source.size());
        co_await link_->write(source, target);
      }
    };
    home_.run(once());
  }

  outcome give_up() override {
    if (!is(operation::put)) return stop_operation();
    const auto back = [this]() -> task<> {
      if (how.sign == released) co_return co_await region_.release();
      if (how.sign == ended) {
        link_->abort();
        co_await lent_.ended();
      } else {
        co_await lent_.revoke();
      }
    };
    home_.run(back());
    return outcome::told;
  }

 private:
  [[nodiscard]] mr::usage remote_use() const { return is(operation::put) ? mr::usage::write_dst : mr::usage::read_src; }
  [[nodiscard]] mr::usage usage() const {
    if (lends()) return how.sign == released ? remote_use() : mr::usage::bind_window;
    return mr::usage::recv | mr::usage::read_dst | mr::usage::write_src;
  }

  // The read is stopped as soon as its first byte has come, the receive at once.
  outcome stop_operation() {
    auto went = outcome::told;
    const auto operate = [&]() -> task<> {
      try {
        const mr::slice target = region_.slice();
        if (is(operation::get)) {
          const mr::remote_slice source = theirs_->slice(0, target.size());
          co_await link_->read(target, source);
        } else {
          co_await link_->recv_into(target);
        }
        went = outcome::completed;
      } catch (const error& failure) {
        if (failure.code() != errc::canceled) throw;
      }
    };
    const auto stop = [&](scope& tasks) -> task<> {
      tasks.spawn(operate());
      while (is(operation::get) && !has_begun(memory) && tasks.size() != 0) co_await yield();
      co_await yield();
      tasks.request_stop();
    };
    home_.run(with_scope(on_failure::stop_siblings, stop));
    return went;
  }

  net::device device_;
  executor home_;
  std::optional<net::listener> listener_;
  mr::region region_;
  std::optional<net::connection> link_;
  net::exposure lent_;
  std::optional<mr::remote_region> theirs_;
  bool is_sent_ = false;
};

std::unique_ptr<end> open(const std::string& transport, const part& mine) {
  return std::make_unique<weft_end>(transport, mine);
}

}  // namespace

library weft_itself() { return {"weft", LATE_WRITER_WEFT_VERSION, {"iwarp", "shm"}, ways, open}; }

}  // namespace late_writer

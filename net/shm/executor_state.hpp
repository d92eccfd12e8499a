// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/software/domain.hpp>
#include <weft/net/software/key_table.hpp>
#include <weft/runtime/core/attachment.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/poller.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace weft::net::shm {

/// An end of a connection, as executor_state sees it.
class polled_end {
 public:
  polled_end() = default;
  polled_end(const polled_end&) = delete;
  polled_end& operator=(const polled_end&) = delete;

 protected:
  ~polled_end() = default;

 private:
  friend class executor_state;
  /// Does a bounded amount of work, and returns how much. Not 0 if the end has removed itself; it may be destroyed
  /// then.
  virtual std::size_t poll() noexcept = 0;
  /// From now on new work makes the socket readable; work that is there already does not.
  virtual void fall_asleep() noexcept = 0;
  virtual void wake_up() noexcept = 0;
  /// Notes that the socket has a packet or, if `at_end`, has ended. Must do no more than that, because poll() follows.
  virtual void socket_ready(bool at_end) noexcept = 0;

  // How the end is polled:
  //   out   not at all
  //   hot   in each turn; asleep while the executor sleeps
  //   cold  asleep, because nothing has happened for a while; hot again once its socket is readable, or after heat()
  enum class state : std::uint8_t { out, hot, cold };
  state state_ = state::out;
  std::uint32_t quiet_ = 0;  // consecutive polls that have found nothing
  polled_end* previous_ = nullptr;
  polled_end* next_ = nullptr;
};

/// Shared by the shared-memory connections of one executor: the poller for all of them, and the executor's reader of
/// the domain's key table.
class executor_state final : public weft::detail::attachment, private poller, private weft::detail::remote_work {
 public:
  /// The running executor's state for `home`; created at the first call. Throws weft::error.
  [[nodiscard]] static executor_state& of(const std::shared_ptr<software::domain>& home, system_calls& calls);

  /// Sets the number of polls without work after which an end goes cold. Called before there are ends, by simulations,
  /// which poll rarely.
  static void set_patience(std::uint32_t polls) noexcept { patience_ = polls; }

  executor_state(std::shared_ptr<software::domain> home, system_calls& calls);
  ~executor_state() override;

  [[nodiscard]] software::key_table::reader& keys() noexcept { return reader_; }

  /// Polls an end from the next turn on. Throws weft::error.
  void add(polled_end& item, int socket);
  void remove(polled_end& item, int socket) noexcept;
  /// Polls the end in the coming turns, because there is work for it.
  void heat(polled_end& item) noexcept {
    item.quiet_ = 0;
    if (item.state_ != polled_end::state::cold) return;
    warm_up(item);
  }

 private:
  std::size_t poll(std::size_t budget) noexcept override;
  void arm() noexcept override;
  void disarm() noexcept override;
  [[nodiscard]] bool may_lose_events() const noexcept override { return false; }
  [[nodiscard]] int wait_fd() const noexcept override { return sockets_.fd(); }

  // remote_work: submitted when the last end has gone
  void run_on_executor() noexcept override;

  void leave() noexcept;
  void warm_up(polled_end& item) noexcept;
  void cool(polled_end& item) noexcept;
  [[nodiscard]] std::size_t poll_hot(std::size_t budget) noexcept;
  void hear() noexcept;
  void link(polled_end& item) noexcept;
  void unlink(polled_end& item) noexcept;

  inline static std::uint32_t patience_ = 2000;

  std::shared_ptr<software::domain> home_;
  software::key_table::reader reader_;
  executor_core& executor_;
  system_calls& calls_;
  descriptor sockets_;             // epoll(7) of all ends' sockets, hot and cold; closed with the polling
  polled_end* first_ = nullptr;    // list of the hot ends
  polled_end* current_ = nullptr;  // where the next poll() goes on, if the last one used up its budget
  polled_end* cooling_ = nullptr;  // the end in cool(); null once its last poll() has removed it
  std::size_t ends_ = 0;
  std::uint32_t polls_ = 0;
  bool armed_ = false;
  bool hears_more_ = false;  // a look at the sockets is due: the last may have missed some that are ready
  bool woken_ = false;       // the executor has woken, and not polled since
  bool polled_ = false;      // the executor polls this object
  bool leaving_ = false;     // run_on_executor() is due
};

}  // namespace weft::net::shm

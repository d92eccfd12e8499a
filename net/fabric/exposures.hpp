// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/region_state.hpp>
#include <weft/net/fabric/domain.hpp>
#include <weft/net/fabric/endpoint.hpp>
#include <weft/net/link/link_life.hpp>
#include <weft/net/link/linked_queue.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/remote_work.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/worker_pool.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace weft::net::fabric {

/// How long a peer may take, while the device is frozen, to answer that it no longer uses memory that was taken back.
inline constexpr auto frozen_patience = std::chrono::milliseconds(500);

/// The keys that a link's peer may use, each until the peer no longer touches its memory.
///
/// Taking memory back: a worker closes the region, so that no further access begins. Then the peer is asked whether an
/// access is in flight, and has to answer in time that none is, or the link ends. A thread that cannot wait for the
/// answer, because it releases a region, freezes the device until the answer comes. If a region was open to every peer,
/// all peers are asked. The number of unanswered questions is bounded, so that the socket has room for the records of
/// both ends.
class exposures {
 public:
  /// The link.
  class owner {
   public:
    /// Called when next_question() may yield a key.
    virtual void has_questions() noexcept = 0;
    /// The peer no longer touches the memory of the key that it has revoked itself: invalidate().
    virtual void invalidated() noexcept = 0;

   protected:
    ~owner() = default;
  };

  /// `quiet` is set when is_busy() may have become false.
  exposures(executor_core& home, endpoint& of, const link_life& life, event& quiet, owner& link) noexcept
      : home_(home), device_(of.home()), endpoint_(of), life_(life), quiet_(quiet), owner_(link) {}
  exposures(const exposures&) = delete;
  exposures& operator=(const exposures&) = delete;

  void make_room() { items_.reserve(8); }
  // See link::expose() and link::revoke().
  task<exposed_place> expose(mr::slice memory, mr::usage uses);
  void revoke(std::uint64_t key, revocation& who) noexcept;

  /// Whether the peer may access `length` bytes from address `first` by that key, with the rights `needed` of fi_mr(3).
  [[nodiscard]] bool allows(std::uint64_t key, std::uint64_t first, std::uint64_t length,
                            std::uint64_t needed) const noexcept;
  /// Whether the key of such an access is being revoked, so that the access may have begun before, and may end yet.
  [[nodiscard]] bool is_revoking(std::uint64_t key, std::uint64_t first, std::uint64_t length,
                                 std::uint64_t needed) const noexcept;
  /// Revokes a key because the peer asks for it. False if the key opens nothing; otherwise owner::invalidated()
  /// follows, unless the link ends.
  [[nodiscard]] bool invalidate(std::uint64_t key) noexcept;
  /// Asks the peer about a region that was open to every peer and has been closed. The device has been frozen for that,
  /// and is thawed once the peer no longer uses the region. False if there is no memory.
  [[nodiscard]] bool ask_about(std::uint64_t key) noexcept;

  /// Takes the next key that the peer is to be asked about; empty if there is none now.
  [[nodiscard]] std::optional<std::uint64_t> next_question() noexcept;
  /// Whether the peer has yet to answer that it no longer uses a region that has been closed.
  [[nodiscard]] bool is_asking() const noexcept { return asking_ != 0; }
  /// Takes the peer's answer whether accesses by that key are in flight. False if the peer was not asked.
  [[nodiscard]] bool take_answer(std::uint64_t key, bool under_way) noexcept;
  /// A key of which the peer should have reported by now that no access is in flight; empty if there is none.
  [[nodiscard]] std::optional<std::uint64_t> overdue() const noexcept;
  /// Settles all questions, because the peer has left, and has no access in flight.
  void peer_left() noexcept;

  /// Whether a worker, or a coroutine of expose(), refers to this object.
  [[nodiscard]] bool is_busy() const noexcept { return closing_ != 0 || exposing_ != 0; }
  // The steps of the end, once is_busy() is false: first on the executor, then on a worker before and after it closes
  // the endpoint, and on the executor again.
  void begin_end() noexcept;
  void close_regions() noexcept;
  void endpoint_closed() noexcept;
  void tell_of_end() noexcept;

 private:
  // A key that the peer may use. To revoke it, a worker closes its region, and then the peer is asked what is in
  // flight. Also the key of a region that was open to every peer, and has been closed.
  struct exposure final : weft::detail::worker_job, weft::detail::remote_work, mr::detail::last_use {
    explicit exposure(exposures& home) noexcept : all(home) {}
    void begin_last_use_of(revocation& whose) noexcept { begin_last_use(whose.take_pin()); }
    void close_region() noexcept;
    void run() noexcept override;                                           // on a worker or, without one, in close()
    void run_on_executor() noexcept override { all.region_closed(*this); }  // after run()
    // Ends the last use or, if that has ended without the peer's answer, thaws the device. Called once the peer no
    // longer touches the memory, on the executor or on a worker that has closed the endpoint.
    void settle() noexcept;
    void go_with_endpoint() noexcept { state == asking ? settle() : end_last_use(); }

    // last_use: ends the last use without waiting for a worker, or for the peer's answer.
    [[nodiscard]] bool withdraw() noexcept override;
    void run_here() noexcept override;

    exposures& all;
    std::atomic<worker_pool*> workers{nullptr};  // the pool that is to close the region, if any
    region_ptr region;
    std::uint64_t key = 0;
    opened_memory opened;
    revocation* who = nullptr;
    enum state_t : std::uint8_t {
      open,     // the peer may use it
      closing,  // a worker closes its region
      asking,   // the peer is asked, now or soon, whether it is still using the memory
      closed,   // revoked at the peer's wish; its owner has not revoked it yet
      swept,    // closed together with the endpoint
    } state = open;
    bool is_of_all = false;   // of a region that was open to every peer; no revocation waits for it
    bool is_by_peer = false;  // revoked by invalidate()
    bool is_asked = false;    // the peer has been asked, and has not said yet that it is done
    bool in_use = false;      // the peer has answered that an access is in flight
    time_point asked_at{};
    exposure* next_unasked = nullptr;
    // How the last use ends:
    //   nobody   the region is not closed yet, or the use has ended
    //   waiting  the region is closed, and the use ends with the peer's answer
    //   hurried  a thread ends the use without the answer, and freezes the device for that
    //   frozen   that thread has ended the use, or the region was open to every peer: settle() thaws the device
    enum hurry_t : std::uint8_t { nobody, waiting, hurried, frozen };
    std::atomic<hurry_t> hurry{nobody};
  };

  [[nodiscard]] exposure* find(std::uint64_t key) const noexcept;
  void close(exposure& item) noexcept;
  void region_closed(exposure& item) noexcept;
  void ask(exposure& item) noexcept;
  [[nodiscard]] exposure* next_asked(std::uint64_t key, bool in_use) noexcept;
  void settled(exposure& item) noexcept;
  void forget(exposure& item) noexcept;

  executor_core& home_;
  const device& device_;
  endpoint& endpoint_;  // used until endpoint_closed()
  const link_life& life_;
  event& quiet_;
  owner& owner_;
  std::vector<std::unique_ptr<exposure>> items_;
  std::size_t closing_ = 0;                                  // exposures in the state `closing`
  std::size_t asking_ = 0;                                   // exposures in the state `asking`
  linked_queue<exposure, &exposure::next_unasked> unasked_;  // exposures about which the peer has yet to be asked
  std::size_t unanswered_ = 0;                               // questions that the peer has not answered
  std::size_t exposing_ = 0;                                 // coroutines of expose() that refer to this object

  std::mutex end_mutex_;
  bool endpoint_is_closed_ = false;  // under end_mutex_: no last use begins afterwards
};

}  // namespace weft::net::fabric

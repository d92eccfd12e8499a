// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/link_life.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/shm/arriving_request.hpp>
#include <weft/net/shm/direct_loans.hpp>
#include <weft/net/shm/direct_requests.hpp>
#include <weft/net/shm/executor_state.hpp>
#include <weft/net/shm/far_copies.hpp>
#include <weft/net/shm/link.hpp>
#include <weft/net/shm/link_breaker.hpp>
#include <weft/net/shm/notices.hpp>
#include <weft/net/shm/output_ring.hpp>
#include <weft/net/shm/owed_answers.hpp>
#include <weft/net/shm/posted_request.hpp>
#include <weft/net/shm/receive_ring.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/net/shm/ring.hpp>
#include <weft/net/software/exposed_keys.hpp>
#include <weft/net/software/receive_queue.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/timer.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace weft::net::shm {

/// One end of a connection through shared memory. The end that owns memory executes the other end's requests to it,
/// unless it has lent the memory to that end.
///
/// Output: requests go into the ring in their order, in as many records as they need, and so do the answers to the
/// peer's requests, which have precedence. A send or write has completed once all of it is in the ring, or, if the peer
/// copies its payload (far_copies), once the peer says that it has. Direct access to memory that the peer has lent
/// keeps the order too: it waits until everything before it has been executed.
///
/// Input: records are taken from the other ring. Each header is copied once, and then checked. A message without a
/// receive holds back everything behind it.
class shm_link final : public net::link,
                       private polled_end,
                       private link_breaker,
                       private direct_loans::lender,
                       private weft::detail::timer,
                       private software::receive_queue::taker {
 public:
  shm_link(established made, std::shared_ptr<software::domain> home, std::shared_ptr<net::receive_queue> shared);

  [[nodiscard]] const capabilities& properties() const noexcept override { return capabilities_; }
  [[nodiscard]] std::string_view peer() const noexcept override { return made_.peer; }
  void start(link_events& events, const link_parameters& parameters) override;
  [[nodiscard]] std::size_t corner_bytes() const noexcept override { return sizeof(posted_request); }
  [[nodiscard]] bool furnish(work_request& work) noexcept override;
  [[nodiscard]] bool takes_at_once() const noexcept override { return true; }
  [[nodiscard]] std::size_t most_at_once() const noexcept override { return whole_bytes - trailer::max_bytes; }
  [[nodiscard]] bool may_read_at_once() const noexcept override { return direct_.are_possible(); }
  [[nodiscard]] bool take_now(const work_request& work) noexcept override;
  [[nodiscard]] direct_place find_direct(std::uint64_t key, std::uint64_t address,
                                         std::uint64_t bytes) noexcept override {
    return direct_.find(key, address, bytes);
  }
  [[nodiscard]] const direct_gate* gate() const noexcept override { return &direct_.gate(); }
  [[nodiscard]] untaken_message peek_message() noexcept override;
  void take_peeked(const untaken_message& peeked) noexcept override;
  void take_arrived() noexcept override;
  void post(work_request& work) noexcept override;
  void post_receive(receive_work& work) noexcept override;
  void ring() noexcept override;
  void shut_down() noexcept override;
  void abort(std::string_view why) noexcept override;
  void refuse(violation what, std::string_view why) noexcept override;
  task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) override;
  void revoke(std::uint64_t key, revocation& who) noexcept override;

 private:
  // One call into the link from outside. Output and closing wait until the outermost turn is over.
  class turn {
   public:
    explicit turn(shm_link& owner) noexcept : owner_(owner) { ++owner_.depth_; }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() {
      if (--owner_.depth_ == 0 && owner_.unsettled_) owner_.settle();
    }

   private:
    shm_link& owner_;
  };

  // polled_end
  std::size_t poll() noexcept override;
  void fall_asleep() noexcept override;
  void wake_up() noexcept override { made_.memory.own().attention.store(end_words::awake, std::memory_order_relaxed); }
  void socket_ready(bool at_end) noexcept override;
  // timer: an answer is overdue
  void expired() noexcept override;
  // lender
  void loans_ended() noexcept override;
  // taker
  void give(receive_work& work) noexcept override { post_receive(work); }

  // link_breaker
  void break_off(const error& why) noexcept override;
  void break_rules(std::string_view what) noexcept override;
  void refuse_access(const shm::refused_access& what, software::access_status status) noexcept override;

  // Output.
  void send_output() noexcept;
  void send_requests() noexcept;
  [[nodiscard]] bool send_request(posted_request& item) noexcept;
  [[nodiscard]] bool send_far(posted_request& item) noexcept;
  [[nodiscard]] bool send_query(posted_request& item) noexcept;
  [[nodiscard]] bool send_pieces(posted_request& item) noexcept;
  void complete_oldest() noexcept;
  [[nodiscard]] bool has_unsent() const noexcept { return requests_.unsent() != nullptr || !answers_.empty(); }
  [[nodiscard]] bool is_settled() const noexcept;

  // Input.
  [[nodiscard]] bool has_input() const noexcept {
    return !life_.has_ended() && !receives_.is_stalled() && (far_.is_copying() || !reader_.is_empty());
  }
  void go_on_with_input() noexcept { far_.is_copying() ? go_on_copying() : take_input(); }
  void take_input() noexcept;
  // The key table's batch for one call of take_input(); begun at the first record that may need a key look-up.
  using key_batch = std::optional<software::key_table::reader::batch>;
  void took_record(std::size_t bytes) noexcept;
  [[nodiscard]] std::size_t take_record(std::size_t available, key_batch& inside) noexcept;
  [[nodiscard]] bool take(const record& header, std::span<const std::byte> content) noexcept;
  [[nodiscard]] bool begin_delivery(const record& header, std::span<const std::byte> content) noexcept;
  void deliver_whole(std::span<const std::byte> content) noexcept;
  void continue_delivery(std::span<const std::byte> content) noexcept;
  void end_delivery() noexcept;
  void go_on_copying() noexcept;
  void take_query(const record& header, std::span<const std::byte> content) noexcept;
  void take_answer(const record& header, std::span<const std::byte> content) noexcept;
  void take_copied() noexcept;
  void take_rest(const record& header, std::span<const std::byte> content) noexcept;

  // The end.
  void refuse_incoming(software::access_status status) noexcept;
  void end_because(const error& why, const record& last, std::string_view words) noexcept;
  void settle() noexcept;
  void advance_end() noexcept;
  void look_at_the_end_of_the_socket() noexcept;
  void flush_oldest() noexcept;
  [[nodiscard]] bool answers_are_held_up() const noexcept;
  void watch_stalled() noexcept;
  [[nodiscard]] bool is_outside_of_loans() noexcept;
  void close() noexcept;

  executor_core& home_;
  established made_;
  std::shared_ptr<software::domain> domain_;
  executor_state& shared_;
  software::stream_id id_;
  capabilities capabilities_;
  // The peer has left when its process, or its end of the socket, is gone. A leaving link only waits until the peer
  // is outside of memory that it was lent.
  link_life life_;
  bool counts_ = true;     // whether the peer's writes are counted: not with native_features::cuts_writes()
  bool in_place_ = false;  // link_parameters::in_place
  std::chrono::milliseconds overdue_after_{};
  unsigned depth_ = 0;      // number of turns in progress, nested
  bool unsettled_ = false;  // settle() has something to do

  output_ring output_;
  posted_requests requests_;
  std::uint16_t reads_ = 0;        // reads and atomic operations outstanding at the peer
  std::optional<record> refused_;  // the peer's `broken` record about the request that it has refused
  direct_requests direct_;
  far_copies far_;
  notices notices_;
  owed_answers answers_;

  ring_reader reader_;
  receive_ring receives_;
  unsigned quiet_polls_ = 0;  // consecutive polls without work, while taken room was not released
  arriving_request incoming_;
  std::uint32_t peer_requests_ = 0;
  software::exposed_keys exposed_{*domain_, id_};
};

}  // namespace weft::net::shm

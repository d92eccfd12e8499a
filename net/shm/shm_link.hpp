// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/link_life.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/shm/direct_access.hpp>
#include <weft/net/shm/direct_loans.hpp>
#include <weft/net/shm/executor_state.hpp>
#include <weft/net/shm/link.hpp>
#include <weft/net/shm/peer_process.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/net/software/exposed_keys.hpp>
#include <weft/net/software/receive_queue.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/timer.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace weft::net::shm {

/// One end of a connection through shared memory. The owner of memory executes its peer's requests, unless it has lent
/// the peer the memory.
///
/// Output: requests go into the ring in their order, in as many records as they need, and so do the answers to the
/// peer's requests, which have precedence. A send or write has completed once all of it is in the ring. Direct access
/// to memory that the peer has lent keeps the order too: it waits until everything before it has been executed.
///
/// Input: records are taken from the other ring. Each header is copied once, and then checked. A message without a
/// receive holds back everything behind it.
class shm_link final : public net::link,
                       private polled_end,
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
  void post(work_request& work) noexcept override;
  void post_receive(receive_work& work) noexcept override;
  void ring() noexcept override;
  void shut_down() noexcept override;
  void abort(std::string_view why) noexcept override;
  void refuse(violation what, std::string_view why) noexcept override;
  [[nodiscard]] task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) override;
  void revoke(const mr::remote_key& key, revocation& who) noexcept override;

 private:
  // The corner of a request.
  struct posted_request {
    work_request* work = nullptr;
    posted_request* next = nullptr;
    std::uint64_t bytes = 0;   // length of the whole
    std::uint64_t moved = 0;   // bytes that are in the ring, or have been answered
    std::uint32_t number = 0;  // counts all requests of this end, modulo 2^32
    bool done = false;
    bool far = false;  // the peer copies the payload, and answers with a `copied`
  };
  // A request of the peer's that is to be answered.
  struct owed_answer {
    record_kind kind = record_kind::read;
    std::uint32_t key = 0;
    std::uint64_t address = 0;
    std::uint64_t total = 0;
    std::uint64_t moved = 0;
    atomic_operands operands{};
    std::uint32_t number = 0;
  };
  // One entry from outside. Output and closing wait until the outermost turn is over.
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
  void wake_up() noexcept override;
  void socket_ready(bool at_end) noexcept override;
  // timer: a read is overdue
  void expired() noexcept override;
  // lender
  void loans_ended() noexcept override;
  // taker
  void give(receive_work& work) noexcept override { post_receive(work); }

  // Output.
  void send_output() noexcept;
  [[nodiscard]] bool send_answers() noexcept;
  void send_requests() noexcept;
  [[nodiscard]] bool send_request(posted_request& item) noexcept;
  [[nodiscard]] bool send_pieces(posted_request& item, record header) noexcept;
  [[nodiscard]] bool may_send_far(const posted_request& item) noexcept;
  [[nodiscard]] bool send_far(posted_request& item, record header) noexcept;
  void ask_for_copies() noexcept;
  [[nodiscard]] bool send_short(const record& header, std::span<const std::byte> payload) noexcept;
  [[nodiscard]] bool send_notices() noexcept;
  [[nodiscard]] bool send_notice(const direct_loans::notice& what) noexcept;
  [[nodiscard]] bool answer_atomic(const owed_answer& asked) noexcept;
  enum class direct_step : std::uint8_t {
    done,        // the whole request has been executed
    wait,        // for requests before it, or for the next turn, because it is too large for one
    by_request,  // the owner has to execute it
  };
  [[nodiscard]] direct_step execute_directly(posted_request& item) noexcept;
  [[nodiscard]] direct_step execute_piece(posted_request& item, const direct_access::range& where,
                                          std::byte* place) noexcept;
  [[nodiscard]] std::span<std::byte> find_room(std::size_t least, std::size_t most) noexcept;
  void put(const record& header) noexcept;
  void publish() noexcept;
  void wake_other() noexcept;
  void complete_oldest() noexcept;
  [[nodiscard]] bool found_room(bool* sane) noexcept;
  [[nodiscard]] bool is_settled() const noexcept;

  // Input.
  void take_input() noexcept;
  // Covers the key look-ups of one turn; made at the first of them.
  using key_batch = std::optional<software::key_table::reader::batch>;
  [[nodiscard]] std::size_t take_record(std::size_t available, key_batch& inside) noexcept;
  [[nodiscard]] bool take(const record& header, std::span<const std::byte> content) noexcept;
  [[nodiscard]] bool begin_delivery(const record& header, std::span<const std::byte> content) noexcept;
  void continue_delivery(std::span<const std::byte> content) noexcept;
  [[nodiscard]] software::access_status place_write(std::span<const std::byte> content) noexcept;
  void end_delivery() noexcept;
  [[nodiscard]] bool find_receive() noexcept;
  void take_query(const record& header, std::span<const std::byte> content) noexcept;
  void take_answer(const record& header, std::span<const std::byte> content) noexcept;
  [[nodiscard]] bool begin_copy(std::span<const std::byte> content) noexcept;
  void go_on_copying() noexcept;
  [[nodiscard]] std::span<std::byte> place_of_copy(software::access_status& status, bool& may_shrink) noexcept;
  void take_proof(std::span<const std::byte> content) noexcept;
  void take_copied() noexcept;
  void take_broken(const record& header, std::span<const std::byte> content) noexcept;
  [[nodiscard]] bool take_notice(const record& header, std::span<const std::byte> content) noexcept;
  [[nodiscard]] bool take_wake_up(descriptor& file) noexcept;
  void take_offer(const record& header, std::span<const std::byte> content) noexcept;
  void lend(std::uint32_t key, software::direct_memory& whole) noexcept;
  void release() noexcept;

  // The end.
  static constexpr std::size_t max_words = 160;
  struct refused_access {
    const char* verb;
    std::uint64_t bytes;
    std::uint64_t address;
    std::uint32_t key;
    std::uint32_t number;  // of all requests of its end, modulo 2^32
  };
  void refuse_access(const refused_access& what, software::access_status status) noexcept;
  void refuse_incoming(software::access_status status) noexcept;
  void break_rules(std::string_view what) noexcept;
  void break_off(const error& why) noexcept;
  void end_because(const error& why, const record& last, std::string_view words) noexcept;
  void say_last_words(record last, std::string_view words) noexcept;
  void settle() noexcept;
  void advance_end() noexcept;
  void look_at_the_end_of_the_socket() noexcept;
  void flush_oldest() noexcept;
  [[nodiscard]] work_status status_of(const posted_request& item) const noexcept;
  void watch_stalled() noexcept;
  [[nodiscard]] bool is_outside_of_loans() noexcept;
  void close() noexcept;

  executor_core& home_;
  established made_;
  std::shared_ptr<software::domain> domain_;
  executor_state& shared_;
  std::shared_ptr<net::receive_queue> queue_;  // null: the receives are posted here
  software::stream_id id_;
  capabilities capabilities_;
  // The peer has left when its process, or its end of the socket, is gone. Leaving, this end waits only until the peer
  // is outside of memory that it was lent.
  link_life life_;
  bool counts_ = true;  // what the peer writes: native_features::cuts_writes()
  std::chrono::milliseconds overdue_after_{};

  ring_writer writer_;
  posted_request* first_ = nullptr;   // the oldest that has not completed
  posted_request* unsent_ = nullptr;  // the oldest that is not all in the ring
  posted_request* last_ = nullptr;
  std::uint32_t requests_ = 0;               // posted in all, modulo 2^32
  std::uint16_t reads_ = 0;                  // outstanding at the peer
  std::optional<std::size_t> blocked_room_;  // the room that there was when output stopped for want of it
  std::optional<record> refused_;            // the peer's record about the request that it has refused
  bool reserved_ = false;                    // the pages of this end's ring are reserved
  unsigned unread_ = 0;                      // wake-ups since the socket was last emptied

  std::unique_ptr<direct_access> direct_;  // null: the peer has offered nothing
  bool unfenced_ = false;                  // the peer may not have executed a write of this end yet
  bool fencing_ = false;                   // a fence has not been answered yet
  bool postponed_ = false;                 // there is more to be executed directly in the next turn
  std::unique_ptr<direct_loans> loans_;    // null: the peer has accessed nothing that it may be lent
  descriptor offered_file_;                // has arrived before its offer was taken
  bool owes_ = false;                      // there may be notices to send: answers about loans and copies, and offers
  bool lost_file_ = false;                 // an offer's file has arrived, but this process had no descriptor for it
  bool owes_fenced_ = false;

  // Large payloads, which the receiver copies out of the sender's memory where the kernel lets it.
  enum class copies : std::uint8_t { untried, asked, possible, impossible };
  copies far_ = copies::untried;                        // by the peer, out of this end's memory
  proof_word proof_;                                    // of this end
  std::optional<peer_process> process_;                 // the peer's; empty: it has sent no proof
  std::array<far_piece, max_far_pieces> far_pieces_{};  // of the payload that is being copied
  bool copying_ = false;                                // the payload of incoming_ is being copied
  std::uint32_t owed_copied_ = 0;                       // how many `copied` are to be sent
  std::optional<bool> owed_proven_;                     // the `proven` that is to be sent

  ring_reader reader_;
  std::vector<receive_work*> receives_;  // posted, a ring
  std::size_t receives_begin_ = 0;
  std::size_t receives_count_ = 0;
  receive_work* receive_ = nullptr;  // the one that is being filled
  unsigned quiet_polls_ = 0;         // polls in a row that have found nothing
  record incoming_;                  // the message or write that is arriving
  std::uint64_t incoming_moved_ = 0;
  bool continued_ = false;  // more pieces of incoming_ follow
  std::uint32_t peer_requests_ = 0;
  std::vector<owed_answer> answers_;  // a ring
  std::size_t answers_begin_ = 0;
  std::size_t answers_count_ = 0;
  bool stalled_ = false;  // a message waits for a receive

  software::exposed_keys exposed_{*domain_, id_};
  unsigned depth_ = 0;
  bool unsettled_ = false;
};

}  // namespace weft::net::shm

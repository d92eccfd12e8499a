// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/engine.hpp>
#include <weft/net/iwarp/executor_state.hpp>
#include <weft/net/iwarp/handshake.hpp>
#include <weft/net/link/link_life.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/link/tcp_window_watch.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/software/exposed_keys.hpp>
#include <weft/net/software/receive_queue.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/system/descriptor.hpp>

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::net::iwarp {

using software::receive_queue;
using software::stream_id;

/// One iWARP connection: an engine on a TCP socket.
///
/// Input: wait until the socket is readable, borrow a staging area, receive what is there, let the engine take whole
/// FPDUs, and give the area back unless bytes are left in it. So an idle connection owns no buffer. Without CRCs, or
/// with iwarp_options::place_unchecked, the rest of a large FPDU is received directly into its destination.
/// Output: borrow a batch, let the engine fill it, hand it to the driver; one sendmsg is in progress at a time.
/// Calls and events only schedule sending and closing, which run_late() does after the executor's tasks have run. So
/// neither happens inside a call of the engine, and one sendmsg carries what all tasks have posted.
class tcp_link final : public net::link,
                       private engine_host,
                       private detail::timer,
                       private detail::late_work,
                       private receive_queue::taker {
 public:
  /// Makes the link of a socket whose set-up is done. `early` are the bytes that were received behind the set-up frame.
  /// `shared` may be null. `place_unchecked` is that of iwarp_options. Throws std::bad_alloc.
  tcp_link(std::unique_ptr<descriptor> socket, std::string peer, std::shared_ptr<domain> home, const parameters& agreed,
           bool initiator, std::vector<std::byte> early, net::receive_queue* shared,
           std::chrono::milliseconds dead_peer_after, bool place_unchecked);
  ~tcp_link() override;

  [[nodiscard]] const capabilities& properties() const noexcept override { return capabilities_; }
  [[nodiscard]] std::string_view peer() const noexcept override { return peer_; }
  void start(link_events& events, const link_parameters& options) override;
  [[nodiscard]] std::size_t corner_bytes() const noexcept override { return sizeof(posted_request); }
  [[nodiscard]] bool furnish(work_request& work) noexcept override;
  [[nodiscard]] bool takes_at_once() const noexcept override { return true; }
  [[nodiscard]] std::size_t most_at_once() const noexcept override { return engine::inline_bytes - trailer::max_bytes; }
  [[nodiscard]] bool take_now(const work_request& work) noexcept override;
  void post(work_request& work) noexcept override;
  void post_receive(receive_work& work) noexcept override;
  void ring() noexcept override { settle_later(); }
  void shut_down() noexcept override;
  void abort(std::string_view why) noexcept override;
  void refuse(violation what, std::string_view why) noexcept override;
  [[nodiscard]] std::optional<std::uint64_t> taken_bytes() noexcept override { return window_.acknowledged_bytes(); }
  task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) override;
  void revoke(std::uint64_t key, revocation& who) noexcept override;
  [[nodiscard]] std::optional<refused_access> refusal() const noexcept override { return refusal_; }
  [[nodiscard]] bool may_have_failed_alone() const noexcept override { return was_damaged_; }

 private:
  // An io_operation that calls a member of its link when it completes.
  class io final : public io_operation {
   public:
    using handler = void (tcp_link::*)(int) noexcept;
    io(io_kind what, tcp_link& owner, handler then) noexcept : io_operation(what), owner_(owner), then_(then) {
      target = owner.socket_.get();
    }

   private:
    void complete(int result) noexcept override { (owner_.*then_)(result); }
    tcp_link& owner_;
    handler then_;
  };
  // What the link keeps in the corner of a work_request.
  struct posted_request : request {
    explicit posted_request(work_request& whole) noexcept : work(whole) {}
    work_request& work;
  };
  struct posted_receive : receive_request {
    receive_work* work = nullptr;
  };

  // engine_host
  write_target find_write_target(std::uint32_t stag, std::uint64_t offset, std::size_t bytes) noexcept override;
  void written(std::uint32_t stag) noexcept override;
  access_status remote_read(std::uint32_t stag, std::uint64_t offset, std::span<std::byte> out) noexcept override;
  access_status check_read(std::uint32_t stag, std::uint64_t offset, std::uint32_t bytes) noexcept override;
  access_status remote_atomic(const atomic_request& asked, std::uint64_t& previous) noexcept override;
  access_status check_atomic(std::uint32_t stag, std::uint64_t offset) noexcept override;
  [[nodiscard]] bool was_revoked(std::uint32_t stag) const noexcept override {
    return domain_->keys().was_revoked(stag);
  }
  access_status invalidate(std::uint32_t stag) noexcept override { return shared_.keys().invalidate(stag, id_); }
  void completed(request& item, const completion& how) noexcept override;
  void received(receive_request& item, const received_info& info) noexcept override;
  receive_request* take_receive() noexcept override;
  void flushed(receive_request& item) noexcept override;
  void input_over() noexcept override { life_.events().input_over(); }
  void ended(const ending& how) noexcept override;

  static void describe(const work_request& work, request& item) noexcept;
  void await_input() noexcept;
  void on_readable(int result) noexcept;
  void on_sent(int result) noexcept;
  void end_send(int result) noexcept;
  // The result of one recvmsg.
  struct intake {
    enum kind_t : std::uint8_t {
      nothing,        // there is nothing to receive now
      all_there_was,  // the socket is empty for now
      all_that_fits,  // the socket may hold more
      last_words,     // the stream has ended
    };
    kind_t kind;
    std::size_t bytes;
  };
  [[nodiscard]] bool take_input() noexcept;
  void resume_input() noexcept;
  void await_more_input() noexcept;
  void read_last_words() noexcept;
  [[nodiscard]] intake receive_once() noexcept;
  [[nodiscard]] intake receive_in_place() noexcept;
  [[nodiscard]] intake receive_into(std::span<iovec> where, std::size_t placement_bytes, std::size_t bytes) noexcept;
  void input_failed(int number) noexcept;
  [[nodiscard]] std::size_t staging_room(bool in_place) noexcept;
  void feed_engine() noexcept;
  void send_output() noexcept;
  [[nodiscard]] bool gather_output() noexcept;
  void start_send() noexcept;
  void connection_lost(int number) noexcept;
  void settle_later() noexcept { home_.put_off(*this); }
  void advance_end() noexcept;
  void stop_io() noexcept;
  void finish() noexcept;
  void watch_stalled() noexcept;
  void look_at_stalled() noexcept;
  void expired() noexcept override;  // calls look_at_stalled(), or ends the wait for the peer to close
  void run_late() noexcept override;
  void give(receive_work& work) noexcept override { post_receive(work); }

  executor_core& home_;
  executor_state& shared_;
  std::shared_ptr<domain> domain_;
  std::unique_ptr<descriptor> socket_;  // on the heap, because a descriptor in use must not move
  std::string peer_;
  parameters agreed_;
  bool initiator_;
  bool place_unchecked_;
  stream_id id_;
  capabilities capabilities_;
  link_life life_;  // peer_has_finished(): no more input; is_broken(): the link resets TCP when it closes
  std::unique_ptr<engine> engine_;
  receive_queue* queue_;                        // the shared receives; null: the link has its own, from post_receive()
  std::unique_ptr<posted_receive[]> receives_;  // with a queue: only the receive that was taken from it
  software::exposed_keys exposed_{*domain_, id_};

  io input_wait_;
  io send_;
  tcp_window_watch window_;
  msghdr send_message_{};
  std::unique_ptr<staging> input_;        // borrowed while bytes arrive or are left over; may stay, empty, at the end
  std::unique_ptr<output_batch> output_;  // borrowed while there is something to send

  std::optional<error> lost_;  // the reason that ended() reports, if not the engine's
  std::optional<refused_access> refusal_;
  bool was_damaged_ = false;  // either end has found bytes that the network may have changed
  int send_failure_ = 0;      // errno of a failed send, except EPIPE and ECONNRESET; ETIMEDOUT if TCP gave up
  bool counts_ = true;        // counts the peer's writes; false with native_features::cuts_writes()
  std::chrono::milliseconds overdue_after_{};
  bool large_frames_ = false;                  // frames need not fit TCP's segments
  std::optional<time_point> reads_held_back_;  // since when reads wait behind a message without a receive
  bool in_bulk_ = false;   // the peer sends large FPDUs: leave their payload in the socket until its place is known
  bool resuming_ = false;  // run_late() feeds the engine: at the start, or because waiting input has got a receive
};

}  // namespace weft::net::iwarp

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/link_life.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/rails/control.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>

#include <cstddef>
#include <optional>

namespace weft::net::rails {

class rail;
struct part;

/// The link that rails belong to, as rails and `outgoing` see it. All calls on its executor.
class rail_owner {
 public:
  /// The scope of a call into the link. The link closes only at the end of the outermost scope, because closed() may
  /// destroy the link.
  class turn {
   public:
    explicit turn(rail_owner& of) noexcept : of_(of) { ++of.depth_; }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() {
      if (--of_.depth_ == 0) of_.settle();
    }

   private:
    rail_owner& of_;
  };

  [[nodiscard]] virtual executor_core& home() const noexcept = 0;
  /// Whether the peer knows rails. If it does not, there is one rail, without control messages.
  [[nodiscard]] bool is_railed() const noexcept { return railed_; }
  [[nodiscard]] bool has_ended() const noexcept { return life_.is_broken(); }
  /// Whether rails may still join: the link has not ended, and is not shutting its rails down.
  [[nodiscard]] bool takes_rails() const noexcept { return !life_.is_broken() && !life_.has_finished(); }
  [[nodiscard]] virtual std::size_t rail_count() const noexcept = 0;
  [[nodiscard]] virtual rail& rail_at(std::size_t place) noexcept = 0;
  /// The rail over which messages are sent; null while no rail is open, or while the fence of a previous message rail
  /// is not settled.
  [[nodiscard]] virtual rail* message_rail() noexcept = 0;
  /// The rail for control messages that may go over any rail; null while no rail is open.
  [[nodiscard]] virtual rail* control_rail() noexcept = 0;
  /// Whether requests issued over that rail may still arrive, because its fence is not settled.
  [[nodiscard]] virtual bool is_being_fenced(std::size_t place) const noexcept = 0;
  /// The key and address of the request's memory on that rail; empty if it has no key there, or the key is not known
  /// yet.
  [[nodiscard]] virtual std::optional<named_place> place_of(const work_request& work,
                                                            const rail& over) const noexcept = 0;
  /// The status of a request whose memory the peer has taken back; empty if the peer has not taken it back.
  [[nodiscard]] virtual std::optional<work_status> taken_back(const work_request& work) noexcept = 0;
  /// Handles the refusal of a request by the peer, which has ended that rail. True if the peer may have taken the
  /// memory back; otherwise the connection has ended.
  [[nodiscard]] virtual bool is_late(rail& over, const work_request& work) noexcept = 0;
  virtual void request_completed(work_request& work, work_status status) noexcept = 0;

  // Events of rails.
  virtual void part_ended(rail& over, part& item, work_status status) noexcept = 0;
  /// A control message has completed, so there is room for another.
  virtual void control_sent() noexcept = 0;
  virtual void message_came(rail& over, receive_work& work, const arrival& what) noexcept = 0;
  virtual void controlled(rail& over, const control& said) noexcept = 0;
  /// Takes a receive of the connection's back, because a control message has filled it.
  virtual void take_back(rail& over, receive_work& work) noexcept = 0;
  virtual void receive_returned(receive_work& work) noexcept = 0;
  /// The peer, which is not weft, has finished sending over the only rail.
  virtual void input_over() noexcept = 0;
  virtual void rail_ended(rail& which, bool orderly, const error& why) noexcept = 0;
  virtual void rail_closed(rail& which) noexcept = 0;
  /// Ends the connection, because the peer breaks the rules.
  virtual void refuse_peer(const char* why, link::violation what = link::violation::other) noexcept = 0;
  /// Ends the connection, unless it has ended.
  virtual void fail(const error& why) noexcept = 0;

 protected:
  rail_owner() = default;
  ~rail_owner() = default;
  /// Called at the end of the outermost turn. Closes the link if it has ended and nothing of it is in progress.
  virtual void settle() noexcept = 0;

  unsigned depth_ = 0;
  bool railed_ = false;
  link_life life_;  // has_finished(): the rails are being shut down; if is_railed(), both ends have sent `finish`
};

}  // namespace weft::net::rails

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/slice.hpp>
#include <weft/net/link/receive_slot.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/rails/control.hpp>
#include <weft/net/rails/control_queue.hpp>
#include <weft/net/rails/health.hpp>
#include <weft/net/rails/rail_owner.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/clock.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace weft::net::rails {

struct entry;

/// The receives that a rail has for control messages, beside the connection's receives: four unconfirmed control
/// messages may be in flight, and two `credits`.
inline constexpr std::uint16_t control_receives = 6;
/// The most control messages that a rail has posted to its link at a time.
inline constexpr std::uint16_t control_parts = 6;

/// A work request that a rail posts to its link: part of a request, or a control message.
struct part : work_request {
  entry* of = nullptr;       ///< null: a control message
  part* next = nullptr;      ///< in the free list
  std::uint64_t offset = 0;  ///< in the request
  std::uint64_t bytes = 0;   ///< length of its segments
  bool is_large = false;     ///< its completion counts towards the rail's rate
  std::array<mr::slice, max_segments> pieces{};
  std::array<std::byte, control::trailer_bytes> trailer{};  ///< of a control message
};

/// The arguments of rail::begin().
struct rail_start {
  std::unique_ptr<link> carrier;
  std::string_view fabric{};
  std::uint32_t epoch = 0;
  std::uint8_t peer_fabric = 0;
  link_parameters parameters{};            ///< with the connection's depths; the rail adds its own
  std::shared_ptr<own_receives> receives;  ///< made by make_control_receives(); null: the peer does not know rails
  mr::buffer control_memory;               ///< for the bytes of control messages
  bool is_open = false;                    ///< the peer is known to be ready
  bool is_far = false;                     ///< the memory is at another NUMA node than the device
};

/// Makes the receives of a rail for its control messages, numbered behind the connection's receives, of which there are
/// `of_connection`. `memory` has control_receives buffers of `bytes` bytes, the size of the connection's receives.
/// Throws std::bad_alloc.
[[nodiscard]] std::shared_ptr<own_receives> make_control_receives(std::vector<mr::buffer> memory, std::size_t bytes,
                                                                  std::size_t of_connection);

/// A rail of a connection: at most one link at a time, and what the connection has in flight there.
///
///   absent  there is no link; one may still come
///   up      a link that executes what is posted
///   ending  a link that has ended, or was given up, and still holds memory
class rail final : private link_events {
 public:
  enum class state : std::uint8_t { absent, up, ending };

  rail(rail_owner& owner, std::uint8_t number) noexcept : owner_(owner), number_(number) {}
  rail(const rail&) = delete;
  rail& operator=(const rail&) = delete;
  ~rail();

  /// The bytes that control_memory needs.
  [[nodiscard]] static constexpr std::size_t control_memory_bytes() noexcept {
    return control_parts * control::max_bytes;
  }

  /// Starts the link. If that throws, the rail is absent, and the exception is passed on.
  void begin(rail_start&& how);
  /// Posts the receives for control messages, behind those of the connection that came with the set-up.
  void post_control_receives() noexcept;

  [[nodiscard]] std::uint8_t number() const noexcept { return number_; }
  [[nodiscard]] std::uint32_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] std::uint8_t peer_fabric() const noexcept { return peer_fabric_; }
  [[nodiscard]] state phase() const noexcept { return state_; }
  /// Whether requests may be posted.
  [[nodiscard]] bool is_open() const noexcept { return state_ == state::up && is_open_; }
  /// Whether it waits for the peer's first message.
  [[nodiscard]] bool is_unopened() const noexcept { return state_ == state::up && !is_open_; }
  void open() noexcept;
  /// The link; null if the rail is absent.
  [[nodiscard]] link* carrier() const noexcept { return carrier_.get(); }
  [[nodiscard]] rail_health& health() noexcept { return health_; }
  [[nodiscard]] const rail_health& health() const noexcept { return health_; }

  [[nodiscard]] bool has_part() const noexcept { return free_ != nullptr; }
  /// Takes a free part; null if all are in use.
  [[nodiscard]] part* take_part() noexcept;
  void post(part& what) noexcept;
  /// Rings the link's doorbell for what was posted.
  void ring() noexcept;
  void give_back(part& what) noexcept;
  /// Bytes and parts in flight, and the recent rate of large parts in bytes per microsecond: 0 if no large part was
  /// carried lately.
  [[nodiscard]] std::uint64_t bytes_out() const noexcept { return bytes_out_; }
  [[nodiscard]] std::uint32_t parts_out() const noexcept { return parts_out_; }
  [[nodiscard]] double rate() const noexcept;
  [[nodiscard]] bool is_far() const noexcept { return is_far_; }
  /// The strongest sign of life from the peer since the last call. Call it only while the rail is up. The peer's
  /// program may be busy for as long as it likes while its machine goes on.
  ///   of_program  a message
  ///   of_machine  an answer to a request, maybe by the device alone, or bytes that the peer's TCP has taken
  enum class sign : std::uint8_t { none, of_machine, of_program };
  [[nodiscard]] sign last_sign() noexcept;
  /// Whether parts are in flight, and all of them complete by the peer's device alone.
  [[nodiscard]] bool waits_for_device() const noexcept {
    return parts_out_ != 0 && carrier_->properties().completes_on_answer;
  }
  /// The number of control messages that wait to be sent.
  [[nodiscard]] std::size_t waiting_controls() const noexcept { return waiting_.size(); }

  /// Sends a control message as soon as the peer has room for it, or drops it if the rail is not up. Ends the
  /// connection if there is no memory to queue it.
  void send(const control& what) noexcept;
  /// Whether send() would send at once, so that later posts come behind the control message.
  [[nodiscard]] bool can_send_now() const noexcept;
  /// Sends a control message at once, so that the peer knows that this end of a new rail is ready.
  void knock() noexcept {
    knocks_ = true;
    pump_controls();
  }
  [[nodiscard]] bool is_own(const receive_work& work) const noexcept { return work.slot >= first_own_receive_; }
  void post_receive(receive_work& work) noexcept;

  /// Ends the link. rail_owner::rail_ended() and rail_closed() follow, as far as they were not called yet. Does nothing
  /// if the rail is absent.
  void give_up(std::string_view why) noexcept;
  void shut_down() noexcept;
  /// Called around each link call that a coroutine awaits, so that the link is not destroyed meanwhile.
  void enter_call() noexcept { ++calls_; }
  void leave_call() noexcept;

 private:
  // link_events
  void completed(work_request& work, work_status status) noexcept override;
  void received(receive_work& work, const arrival& what) noexcept override;
  void receive_flushed(receive_work& work) noexcept override;
  void input_over() noexcept override;
  void ended(bool orderly, const error& why) noexcept override;
  void closed() noexcept override;

  [[nodiscard]] static std::size_t stride_of(const link& carrier) noexcept;
  void furnish_parts() noexcept;
  void pump_controls() noexcept;
  void shut_down_once_said() noexcept;
  void take_control(receive_work& work, std::span<const std::byte> message) noexcept;
  void note_rate(std::uint64_t bytes) noexcept;
  void becomes(state what) noexcept;

  struct free_corner {
    void operator()(std::byte* memory) const noexcept { ::operator delete(memory, std::align_val_t{corner_alignment}); }
  };

  rail_owner& owner_;
  const std::uint8_t number_;
  std::uint8_t peer_fabric_ = 0;
  state state_ = state::absent;
  rail_health health_;
  bool is_open_ = false;
  bool is_far_ = false;
  bool was_posted_ = false;
  bool given_up_ = false;  // by this end, which has noted why
  std::uint32_t epoch_ = 0;
  std::uint16_t first_own_receive_ = 0;
  unsigned calls_ = 0;
  std::unique_ptr<link> carrier_;
  std::vector<std::unique_ptr<link>> finished_;  // closed links in which calls still wait

  std::vector<part> parts_;
  std::unique_ptr<std::byte, free_corner> corners_;
  part* free_ = nullptr;
  part* free_controls_ = nullptr;
  std::uint64_t bytes_out_ = 0;
  std::uint32_t parts_out_ = 0;
  std::uint32_t large_parts_out_ = 0;
  // State of last_sign().
  bool answered_ = false;
  bool heard_ = false;
  std::uint64_t taken_ = 0;
  double rate_ = 0;
  std::uint64_t bytes_measured_ = 0;
  time_point measured_since_{};  // start of the current busy time, while large parts are in flight
  duration busy_{};              // earlier busy time since the rate was last noted
  time_point measured_{};        // when the rate was last noted

  // Control messages; counts are modulo 2^32.
  control_queue waiting_;
  std::uint32_t sent_ = 0;
  std::uint32_t confirmed_ = 0;  // sent messages that the peer has confirmed
  std::uint32_t received_ = 0;
  std::uint32_t told_ = 0;  // the value of received_ that was last sent to the peer
  bool knocks_ = false;
  bool is_to_shut_down_ = false;
  mr::buffer control_memory_;
  std::shared_ptr<own_receives> receives_;
};

}  // namespace weft::net::rails

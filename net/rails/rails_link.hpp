// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/back_off.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>
#include <weft/net/rails/control.hpp>
#include <weft/net/rails/handles.hpp>
#include <weft/net/rails/news.hpp>
#include <weft/net/rails/outgoing.hpp>
#include <weft/net/rails/patience.hpp>
#include <weft/net/rails/rail.hpp>
#include <weft/net/rails/rail_owner.hpp>
#include <weft/net/rails/registry.hpp>
#include <weft/net/rails/slicing.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/system/timer.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::net::rails {

/// The way of one rail: its fabric and, at the end that connects, the peer's address.
struct rail_route {
  transport* way = nullptr;
  std::string address{};  ///< empty at the end that accepts
};

/// What a connection keeps of its set-up, to make more links like the first.
struct rails_set_up {
  std::vector<transport*> ways{};            ///< of the device; link_request::fabric is an index into them
  std::vector<rail_route> routes;            ///< one for each rail; the first is that of the existing link
  std::vector<std::string> own_addresses{};  ///< of the accepting end: where it listens
  bool learns_addresses = false;             ///< all routes have the same address, and the peer may name others
  bool connects = false;                     ///< this end asks for the rails
  connection_id id{};                        ///< zero: the peer does not know rails
  std::optional<registry::registration> registered{};  ///< at the accepting end, if the peer knows rails
  std::string source{};                      ///< set_up_options::source, at the end that connects over a single fabric
  set_up_options how;                        ///< without pointers to the user's memory
  std::shared_ptr<own_receives> receives{};  ///< for control messages on the first rail
  mr::buffer control_memory;
  mr::buffer kept_memory;  ///< for messages that may have to be sent again
  slicing sliced;
};

/// A link made of several links that keeps the promises of one: requests execute once and in order, whichever link
/// ends.
///
/// The end that connects asks for the rails, and asks again for lost ones. Messages and small requests go over one of
/// them; `outgoing` decides what goes over several. When a rail ends, both ends close their link of it, and each tells
/// the other when it has: from then on nothing can arrive over it, and requests that have not completed go over
/// another. See docs/rails.md.
class rails_link final : public link, public rail_owner, public exposed_memory::observer, private weft::detail::timer {
 public:
  rails_link(std::shared_ptr<registry> all, std::unique_ptr<link> first, rails_set_up how);
  ~rails_link() override;

  // link
  [[nodiscard]] const capabilities& properties() const noexcept override { return capabilities_; }
  [[nodiscard]] std::string_view peer() const noexcept override { return peer_; }
  [[nodiscard]] std::vector<rail_statistics> rails() const override;
  void start(link_events& events, const link_parameters& parameters) override;
  [[nodiscard]] std::size_t corner_bytes() const noexcept override { return sizeof(entry); }
  [[nodiscard]] bool furnish(work_request& work) noexcept override;
  void post(work_request& work) noexcept override;
  void post_receive(receive_work& work) noexcept override;
  void ring() noexcept override;
  void shut_down() noexcept override;
  void peer_finished() noexcept override;
  void abort(std::string_view why) noexcept override;
  void refuse(violation what, std::string_view why) noexcept override;
  [[nodiscard]] std::uint64_t largest_key() const noexcept override { return UINT64_MAX; }
  [[nodiscard]] task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) override;
  void revoke(const mr::remote_key& key, revocation& who) noexcept override;

  /// A peer asks to add a rail; on this link's executor.
  void join_asked(const join& said, std::unique_ptr<link_request> request) noexcept;

  // rail_owner
  [[nodiscard]] executor_core& home() const noexcept override { return home_; }
  [[nodiscard]] bool is_railed() const noexcept override { return railed_; }
  [[nodiscard]] bool has_ended() const noexcept override { return ended_; }
  [[nodiscard]] std::size_t rail_count() const noexcept override { return rails_.size(); }
  [[nodiscard]] rail& rail_at(std::size_t number) noexcept override { return rails_[number].way; }
  [[nodiscard]] rail* message_rail() noexcept override { return unresolved_ != 0 ? nullptr : out_; }
  [[nodiscard]] bool is_being_fenced(std::size_t number) const noexcept override { return rails_[number].must_fence; }
  [[nodiscard]] std::optional<named_place> place_of(const work_request& work, const rail& over) const noexcept override;
  [[nodiscard]] std::optional<work_status> taken_back(const work_request& work) noexcept override;
  [[nodiscard]] bool is_late(rail& over, const work_request& work) noexcept override;
  void request_completed(work_request& work, work_status status) noexcept override;
  void part_ended(rail& over, part& item, work_status status) noexcept override;
  void control_sent() noexcept override { pump(); }
  void message_came(rail& over, receive_work& work, const arrival& what) noexcept override;
  void controlled(rail& over, const control& said) noexcept override;
  void take_back(rail& over, receive_work& work) noexcept override;
  void receive_returned(receive_work& work) noexcept override;
  void rail_ended(rail& which, bool orderly, const error& why) noexcept override;
  void rail_closed(rail& which) noexcept override;
  void refuse_peer(const char* why, violation what = violation::other) noexcept override;
  void fail(const error& why) noexcept override;

 private:
  static constexpr retry_options first_pauses{.first_pause = std::chrono::milliseconds(20),
                                              .max_pause = std::chrono::milliseconds(2000)};

  // The timer of the next attempt to get a rail back. No task waits for it, because an executor keeps running while a
  // task waits.
  class redial final : public weft::detail::timer {
   public:
    redial(rails_link& of, std::size_t number) noexcept : of_(of), number_(number) {}

   private:
    void expired() noexcept override { of_.ask_again(number_); }

    rails_link& of_;
    const std::size_t number_;
  };
  [[nodiscard]] back_off new_pauses() noexcept {
    retry_options how = first_pauses;
    how.seed = pauses_seed_++;
    return back_off(how);
  }
  struct place {
    place(rails_link& of, std::uint8_t number) : way(of, number), again(of, number), pauses(of.new_pauses()) {}

    rail way;
    redial again;
    back_off pauses;
    // The fence of a rail that is over: the peer has to answer it before any of the rail's requests go over another.
    bool must_fence = false;
    bool carried_messages = false;
    std::uint32_t fence_epoch = 0;
    std::optional<std::uint64_t> peer_received;  // the answer to the fence
    // The peer has ended the rail in order, and may have refused requests that are still with it: answers may come
    // until then.
    std::optional<time_point> awaits_answers_until;
    [[nodiscard]] bool awaits_fenced() const noexcept { return must_fence && !peer_received; }
    // The peer's own fence, which this end has to answer.
    bool answer_owed = false;
    std::uint32_t answer_epoch = 0;
    rail* messages_move_to = nullptr;
    std::uint32_t moves_to_epoch = 0;
    // Set if the peer has ended the rail because it refused its memory to this end. `refused` is the handle of that
    // memory, once it is known. Until then the peer is not asked for the fence, so that it hears of the refusal first.
    std::optional<error> refused_why{};
    std::uint64_t refused = 0;
    // Set if the rail has ended because the peer was refused memory of this end. `late` is its handle, if the fabric
    // tells; otherwise the peer has to name it. `explained` is one more than the epoch for which it is known.
    std::uint64_t late = 0;
    std::optional<error> unexplained{};
    time_point unexplained_since{};
    std::uint64_t explained = 0;
    // State of the task that gets the rail back. Each attempt has an epoch of its own, because the peer may take an
    // attempt for successful that failed at this end. A rail of an epoch that the peer has shut does not begin any
    // more.
    bool joining = false;
    std::uint32_t asked_epoch = 0;
    std::uint32_t shut_epoch = 0;
    std::optional<time_point> opened_at{};
    time_point began_at{};
    event gone;  // set when the link is gone, or the connection ends
    // State of the watch for silence.
    bool is_suspected = false;                // it has not moved between two looks, although something is in flight
    unsigned silent_looks = 0;                // looks since then at which another rail has shown that the peer is there
    std::optional<time_point> given_up_at{};  // when it was given up for its silence
  };

  void settle() noexcept override;
  void end_because(bool orderly, const error& why) noexcept;
  void break_off(violation what, const error& why, std::string_view words) noexcept;
  void close_rails() noexcept;
  void tell_addresses() noexcept;
  void use_told_addresses() noexcept;
  void not_joined(const rail_route& over, const error& why);
  void ask_for_all() noexcept;
  void ask_again(std::size_t number) noexcept;
  void ask_later(place& which, duration pause) noexcept;
  void ask_no_more() noexcept;
  void begin_railed() noexcept;
  void begin_counting() noexcept;
  void messages_go_over(rail* over) noexcept;
  void choose_message_rail(const error& why) noexcept;
  void all_lost(const error& why) noexcept;
  [[nodiscard]] bool awaits_answers() const noexcept;
  void tell_peer_of_state() noexcept;
  [[nodiscard]] bool may_lose_rails() const noexcept;
  [[nodiscard]] bool goes_on_without(place& which, const error& why) noexcept;
  [[nodiscard]] bool may_have_been_late(place& which, const refused_access& what, const error& why) noexcept;
  void note_refusal(place& which, std::uint64_t handle) noexcept;
  void tell_of_refusal(const place& which) noexcept;
  void explained(place& about, const control& said) noexcept;
  void note_late(place& which, std::uint32_t epoch, const withdrawn_memory::item& what) noexcept;
  void tell_withdrawn(rail& over, std::uint64_t handle, bool at_deadline) noexcept;
  [[nodiscard]] std::chrono::milliseconds time_to_resume() const noexcept;
  void fence(place& which) noexcept;
  void answer_fence(place& which) noexcept;
  void look_at_fence(place& which) noexcept;
  void rail_opened(rail& which) noexcept;
  void receive_over(rail* over) noexcept;
  void deliver(receive_work& work, const arrival& what) noexcept;
  void deliver_held() noexcept;
  [[nodiscard]] exposed_memory* find_exposed(std::uint64_t handle) noexcept;
  void give_back(rail& over, std::uint64_t handle) noexcept;
  void close_keys(exposed_memory& what) noexcept;
  void end_in_order() noexcept;
  void try_finish() noexcept;
  void pump() noexcept;
  void arm_watch() noexcept;
  void expired() noexcept override;
  void arm_watch_at(time_point when) noexcept;
  [[nodiscard]] std::optional<time_point> next_look() const noexcept;
  rail::sign look_for_silence() noexcept;
  void give_up_unopened() noexcept;
  void ask_rails() noexcept;
  [[nodiscard]] bool must_watch() const noexcept;
  [[nodiscard]] bool waits_for_rails() const noexcept;
  [[nodiscard]] error why_none_came() const noexcept;
  [[nodiscard]] bool awaits_fenced_over(const rail& over) const noexcept;
  void key_revoked(exposed_memory& of) noexcept override;
  [[nodiscard]] std::uint32_t random_number() const;
  void announce(const exposed_memory& what, std::size_t on) noexcept;
  void answer_about_names() noexcept;
  void free_if_over(exposed_memory& what) noexcept;

  // Tasks of the link, which is not destroyed before they end.
  class at_work;
  class naming;
  class slot_claim;
  void begin_naming(std::size_t number) noexcept;
  /// `make` makes the task; without memory for it, the link ends.
  template <class Make>
  void begin_task(Make make, const char* name) noexcept;
  [[nodiscard]] static task<> counted(rails_link& self, task<> work);
  [[nodiscard]] static task<> try_rail(rails_link& self, std::size_t number);
  [[nodiscard]] static task<bool> ask_for_rail(rails_link& self, std::size_t number);
  [[nodiscard]] static task<> admit(rails_link& self, join said, std::unique_ptr<link_request> request);
  [[nodiscard]] bool may_begin(const place& its, std::uint32_t epoch) const noexcept;
  [[nodiscard]] static task<rail_start> prepare(rails_link& self);
  [[nodiscard]] static task<> expose_over(rails_link& self, std::size_t number);
  [[nodiscard]] task<std::optional<std::size_t>> open_first_key(exposed_memory& what);
  [[nodiscard]] task<> open_key(exposed_memory& what, std::size_t on);
  [[nodiscard]] bool is_far(const transport& way) const noexcept;
  [[nodiscard]] set_up_options set_up_of(std::span<const std::byte> private_data) const;

  executor_core& home_;
  const std::shared_ptr<registry> registry_;
  rails_set_up set_up_;
  capabilities capabilities_;
  std::string peer_;
  std::uint64_t pauses_seed_ = 0;
  link_events* events_ = nullptr;
  link_parameters parameters_{};
  bool railed_ = false;
  std::size_t tasks_ = 0;
  stop_source stop_;

  std::deque<place> rails_;
  std::unique_ptr<link> first_;  // before start()
  rail* out_ = nullptr;          // the rail that messages are sent over; null: none is open
  rail* in_ = nullptr;           // the rail that messages arrive over; null: the peer has not chosen one
  std::uint64_t most_received_ = 0;
  std::size_t unresolved_ = 0;  // ended rails with messages for which the peer has not said how many came
  outgoing outgoing_{*this, set_up_.sliced};

  // The connection's receives: posted on in_, held for messages that arrive in a receive for control messages, or idle.
  std::uint16_t first_receives_ = 0;  // still to be posted, in the order that the set-up has announced
  std::vector<receive_work*> held_;
  std::vector<receive_work*> idle_;
  std::vector<receive_work*> returning_;  // idle ones, on their way to the rail that messages arrive over now
  std::uint64_t received_ = 0;            // messages received
  // The first gives memory back that a key may still open; the others wait behind it.
  struct held_message {
    receive_work* work;
    arrival what;
  };
  std::vector<held_message> held_messages_;
  std::uint64_t given_back_ = 0;  // the handle that the next message gives back; 0: none

  std::vector<std::unique_ptr<exposed_memory>> exposed_;
  std::vector<std::uint32_t> free_slots_;  // free places in exposed_; there is room for all
  std::size_t claimed_ = 0;                // places in exposed_ that tasks have reserved
  // How many tasks are asking a rail for keys, and the peer's questions that are answered once there are none: their
  // number, and the rail and epoch of each.
  struct question {
    std::uint64_t number;
    std::uint64_t handle;
    std::uint8_t rail;
    std::uint32_t epoch;
  };
  std::size_t naming_ = 0;
  std::vector<question> questions_;
  peer_memory peers_{set_up_.how.max_peer_exposures};
  bool greeted_ = false;  // the peer has sent its greeting
  withdrawn_memory withdrawn_;

  patience patience_;
  duration pause_{};            // between two looks of the watch; it grows while no rail shows a sign
  bool is_long_pause_ = false;  // the watch is armed for longer than the shortest pause

  std::vector<std::string> told_;  // where the peer listens, in its order; empty: this end cannot use the address
  std::optional<time_point> lost_since_;  // set while no rail is there and one may come
  std::optional<error> lost_why_;
  std::optional<error> suspicion_;     // why a rail ended that may have refused an access of the peer's, or failed
  std::optional<error> last_attempt_;  // why the last attempt to get a rail failed, since then
  event rail_came_;                    // set when a rail has come since then, or the link has ended
  bool lost_by_refusals_ = false;      // refusals have ended a rail since one came last
  news news_{*this, peer_, registry_->rails};
  bool shutting_down_ = false;
  bool finish_sent_ = false;
  bool peer_has_finished_ = false;
  bool rails_shut_ = false;
  bool told_of_end_ = false;
  bool ended_ = false;
  bool closed_ = false;
};

}  // namespace weft::net::rails

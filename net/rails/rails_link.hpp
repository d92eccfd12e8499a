// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/back_off.hpp>
#include <weft/net/options.hpp>
#include <weft/net/rails/control.hpp>
#include <weft/net/rails/handles.hpp>
#include <weft/net/rails/outgoing.hpp>
#include <weft/net/rails/rail.hpp>
#include <weft/net/rails/rail_owner.hpp>
#include <weft/net/rails/registry.hpp>
#include <weft/net/transport.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/io/timer.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/sync/event.hpp>

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

/// What the links of one connection go over: the fabric and, at the end that connects, the peer's address for each.
struct rail_route {
  transport* way = nullptr;
  std::string address{};  ///< empty at the end that accepts
};

/// What a connection keeps of its set-up, to have more links like the first.
struct rails_set_up {
  std::vector<transport*> ways{};    ///< of the device: link_request::fabric names one
  std::vector<rail_route> routes;    ///< one for each rail; the first is that of the link there is
  bool connects = false;             ///< this end asks for links
  set_up_options how;                ///< without what refers to the user's memory
  std::vector<mr::buffer> receives;  ///< for control messages on the first rail
  mr::buffer control_memory;
  mr::buffer kept_memory;  ///< for messages that may have to be sent again
};

/// A link made of links, with the promises of one: what was posted executes once and in order, whichever of them ends.
///
/// The end that connects asks for the rails, and asks again for those that are lost. Messages and small requests go
/// over one of them; outgoing says what goes over several. When a rail ends, both ends close theirs, and each tells the
/// other when it has: from then on nothing can arrive from it, and what nobody has been told of goes over another. See
/// docs/rails.md.
class rails_link final : public link, public rail_owner, public exposed_memory::observer, private weft::detail::timer {
 public:
  rails_link(std::shared_ptr<registry> all, std::unique_ptr<link> first, rails_set_up how);
  ~rails_link() override;

  // link
  [[nodiscard]] const capabilities& properties() const noexcept override { return capabilities_; }
  [[nodiscard]] std::string_view peer() const noexcept override { return peer_; }
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
  void request_completed(work_request& work, work_status status) noexcept override;
  void part_ended(rail& over, part& item, work_status status) noexcept override;
  void message_came(rail& over, receive_work& work, const arrival& what) noexcept override;
  void controlled(rail& over, const control& said) noexcept override;
  void take_back(rail& over, receive_work& work) noexcept override;
  void receive_returned(receive_work& work) noexcept override;
  void rail_ended(rail& which, bool orderly, const error& why) noexcept override;
  void rail_closed(rail& which) noexcept override;
  void refuse_peer(const char* why) noexcept override;
  void fail(const error& why) noexcept override;

 private:
  static constexpr retry_options first_pauses{.first_pause = std::chrono::milliseconds(20),
                                              .max_pause = std::chrono::milliseconds(2000)};

  // When a rail that is not there is asked for again. No task waits for that, because an executor runs on for as long
  // as one does.
  class redial final : public weft::detail::timer {
   public:
    redial(rails_link& of, std::size_t number) noexcept : of_(of), number_(number) {}

   private:
    void expired() noexcept override { of_.ask_again(number_); }

    rails_link& of_;
    const std::size_t number_;
  };
  struct place {
    place(rails_link& of, std::uint8_t number) : way(of, number), again(of, number) {}

    rail way;
    redial again;
    back_off pauses{first_pauses};
    // Of a rail that is over: what the peer has to say before anything that went over it goes over another.
    bool must_fence = false;
    bool carried_messages = false;
    std::uint32_t fence_epoch = 0;
    std::optional<std::uint64_t> peer_received;  // the answer
    // What the peer has asked of it.
    bool answer_owed = false;
    std::uint32_t answer_epoch = 0;
    rail* messages_move_to = nullptr;
    std::uint32_t moves_to_epoch = 0;
    // Of the task that has it come back.
    bool joining = false;
    event gone;  // there is no link
    // Of the watch.
    std::uint64_t progress_seen = 0;
    unsigned silent_ticks = 0;
  };

  void settle() noexcept override;
  void end_because(bool orderly, const error& why) noexcept;
  void close_rails() noexcept;
  void ask_again(std::size_t number) noexcept;
  void ask_later(place& which, duration pause) noexcept;
  void ask_no_more() noexcept;
  void begin_railed() noexcept;
  void choose_message_rail(const error& why) noexcept;
  void all_lost(const error& why) noexcept;
  void tell_peer_of_state() noexcept;
  void fence(place& which) noexcept;
  void answer_fence(place& which) noexcept;
  void look_at_fence(place& which) noexcept;
  void rail_opened(rail& which) noexcept;
  void receive_over(rail* over) noexcept;
  void deliver(receive_work& work, const arrival& what) noexcept;
  void try_finish() noexcept;
  void pump() noexcept;
  void arm_watch() noexcept;
  void expired() noexcept override;
  void look_for_silence() noexcept;
  void key_revoked(exposed_memory& of) noexcept override;
  [[nodiscard]] std::uint32_t random_number() const;
  void announce(const exposed_memory& what, std::size_t on) noexcept;
  void answer_about_names() noexcept;
  void free_if_over(exposed_memory& what) noexcept;

  // Tasks beside the link, which stays for them.
  class at_work;
  class naming;
  class slot_claim;
  void begin_naming(std::size_t number) noexcept;
  void begin_task(task<> work, const char* name) noexcept;
  [[nodiscard]] static task<> counted(rails_link& self, task<> work);
  [[nodiscard]] static task<> try_rail(rails_link& self, std::size_t number);
  [[nodiscard]] static task<bool> ask_for_rail(rails_link& self, std::size_t number);
  [[nodiscard]] static task<> admit(rails_link& self, join said, std::unique_ptr<link_request> request);
  [[nodiscard]] static task<rail_start> prepare(rails_link& self);
  [[nodiscard]] static task<> expose_over(rails_link& self, std::size_t number);
  [[nodiscard]] task<std::optional<std::size_t>> open_first_key(exposed_memory& what);
  [[nodiscard]] task<> open_key(exposed_memory& what, std::size_t on);
  [[nodiscard]] set_up_options set_up_of(std::span<const std::byte> private_data) const;

  executor_core& home_;
  const std::shared_ptr<registry> registry_;
  rails_set_up set_up_;
  capabilities capabilities_;
  std::string peer_;
  link_events* events_ = nullptr;
  link_parameters parameters_{};
  bool railed_ = false;
  std::size_t tasks_ = 0;
  stop_source stop_;

  std::deque<place> rails_;
  std::unique_ptr<link> first_;  // before start()
  rail* out_ = nullptr;          // that messages go over; null: none is open
  rail* in_ = nullptr;           // that they come over; null: the peer has not chosen
  std::size_t unresolved_ = 0;   // rails that carried messages and are over, of which the peer has not said what came
  outgoing outgoing_{*this};
  connection_id id_{};
  bool registered_ = false;

  // Receives of the connection's: with in_, held for messages that come into a control message's receive, or idle.
  std::uint16_t first_receives_ = 0;  // still to be posted as the set-up has announced them
  std::vector<receive_work*> held_;
  std::vector<receive_work*> idle_;
  std::uint64_t received_ = 0;  // messages

  std::vector<std::unique_ptr<exposed_memory>> exposed_;
  std::size_t claimed_ = 0;  // places in it that will be needed
  // Tasks that ask a rail for keys, and who waits for what they bring: the number, and the rail and its epoch.
  struct question {
    std::uint64_t number;
    std::uint8_t rail;
    std::uint32_t epoch;
  };
  std::size_t naming_ = 0;
  std::vector<question> questions_;
  peer_memory peers_;

  std::optional<time_point> lost_since_;  // no rail is there, and one may come
  std::optional<error> lost_why_;
  event rail_came_;  // since then, or the end
  bool shutting_down_ = false;
  bool finish_sent_ = false;
  bool peer_has_finished_ = false;
  bool rails_shut_ = false;
  bool told_of_end_ = false;
  bool ended_ = false;
  bool closed_ = false;
};

}  // namespace weft::net::rails

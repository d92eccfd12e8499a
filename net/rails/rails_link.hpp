// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/rails/control.hpp>
#include <weft/net/rails/fences.hpp>
#include <weft/net/rails/handles.hpp>
#include <weft/net/rails/incoming.hpp>
#include <weft/net/rails/joining.hpp>
#include <weft/net/rails/link_tasks.hpp>
#include <weft/net/rails/news.hpp>
#include <weft/net/rails/outage.hpp>
#include <weft/net/rails/outgoing.hpp>
#include <weft/net/rails/own_memory.hpp>
#include <weft/net/rails/rail.hpp>
#include <weft/net/rails/rail_owner.hpp>
#include <weft/net/rails/refusals.hpp>
#include <weft/net/rails/registry.hpp>
#include <weft/net/rails/slicing.hpp>
#include <weft/net/rails/watch.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::net::rails {

/// The parts of its set-up that a connection keeps.
struct rails_set_up {
  join_options joins;
  std::optional<registry::registration> registered{};  ///< at the accepting end, if the peer knows rails
  std::shared_ptr<own_receives> receives{};            ///< for control messages on the first rail
  mr::buffer control_memory;
  mr::buffer kept_memory;  ///< for copies of messages that may have to be sent again
  slicing sliced;
};

/// A link made of several links, its rails, that keeps the promises of one link, whichever rail ends: requests take
/// effect in order, and messages and atomic operations at most once. A write may be repeated, but no copy of it lands
/// late.
///
/// Messages and small requests go over one rail; `outgoing` decides what goes over several. When a rail ends, both ends
/// close their link of it, and each notifies the other: from then on nothing can arrive over it. Requests that have not
/// completed are issued over another rail, except those that must not be repeated, which end as work_status::unknown.
/// See docs/rails.md.
///
///   outgoing, incoming  requests; receives and messages
///   joining             gets links for the rails
///   fences, refusals    rails that have ended; refused accesses that have ended rails
///   own_memory          memory exposed to the peer; peer_memory: memory that the peer has exposed
///   watch, outage       rails that are silent; the time without any rail
class rails_link final : public link,
                         public rail_owner,
                         public joinable,
                         private own_memory::host,
                         private joining::host,
                         private watch::subject {
 public:
  rails_link(std::shared_ptr<registry> all, std::unique_ptr<link> first, rails_set_up how);

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
  task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) override;
  void revoke(std::uint64_t key, revocation& who) noexcept override;

  // joinable
  void join_asked(const join& said, std::unique_ptr<link_request> request) noexcept override {
    joining_.asked(said, std::move(request));
  }

  // rail_owner
  [[nodiscard]] executor_core& home() const noexcept override { return home_; }
  [[nodiscard]] std::size_t rail_count() const noexcept override { return rails_.size(); }
  [[nodiscard]] rail& rail_at(std::size_t number) noexcept override { return rails_[number]; }
  [[nodiscard]] rail* message_rail() noexcept override { return fences_.are_messages_unsettled() ? nullptr : out_; }
  [[nodiscard]] rail* control_rail() noexcept override { return out_; }
  [[nodiscard]] bool is_being_fenced(std::size_t number) const noexcept override { return fences_.is_due(number); }
  [[nodiscard]] std::optional<named_place> place_of(const work_request& work, const rail& over) const noexcept override;
  [[nodiscard]] std::optional<work_status> taken_back(const work_request& work) noexcept override;
  [[nodiscard]] bool is_late(rail& over, const work_request& work) noexcept override;
  void request_completed(work_request& work, work_status status) noexcept override {
    life_.events().completed(work, status);
  }
  void part_ended(rail& over, part& item, work_status status) noexcept override;
  void control_sent() noexcept override { pump(); }
  void message_came(rail& over, receive_work& work, const arrival& what) noexcept override {
    incoming_.message_came(over, work, what);
  }
  void controlled(rail& over, const control& said) noexcept override;
  void take_back(rail& over, receive_work& work) noexcept override { incoming_.take_back(over, work); }
  void receive_returned(receive_work& work) noexcept override { incoming_.returned(work); }
  void input_over() noexcept override {
    if (!life_.has_ended()) life_.events().input_over();
  }
  void rail_ended(rail& which, bool orderly, const error& why) noexcept override;
  void rail_closed(rail& which) noexcept override;
  void refuse_peer(const char* why, violation what = violation::other) noexcept override { refuse(what, why); }
  void fail(const error& why) noexcept override;

 private:
  // own_memory::host
  [[nodiscard]] rail* rail_of_accesses() const noexcept override { return incoming_.over(); }
  void keys_closed() noexcept override;
  // joining::host
  void link_began() noexcept override { pump(); }
  void not_joined(const rail& which, const rail_route& over, const error& why) override;
  // watch::subject
  [[nodiscard]] bool look_at_limits() noexcept override;
  [[nodiscard]] std::optional<time_point> next_limit() const noexcept override;
  [[nodiscard]] bool waits_for_rails() const noexcept override;
  [[nodiscard]] bool waits_for(const rail& which) noexcept override;

  void begin_counting() noexcept;
  void begin_railed() noexcept;
  void settle() noexcept override;
  void pump() noexcept;
  void controlled(rail* about, rail& over, const control& said) noexcept;
  void peer_gave_up(rail& which) noexcept;
  void greeted(rail& over) noexcept;
  void peer_exposed(const control& said) noexcept;
  void peer_withdrew(const control& said) noexcept;
  void messages_go_over(rail* over) noexcept;
  void choose_message_rail(const error& why) noexcept;
  void tell_peer_of_state() noexcept;
  void all_lost(const error& why) noexcept;
  void rail_opened(rail& which) noexcept;
  [[nodiscard]] bool may_lose_rails() const noexcept;
  [[nodiscard]] bool goes_on_without(rail& which, const error& why) noexcept;
  void fence(rail& which) noexcept;
  void look_at_fence(rail& which) noexcept;
  void try_finish() noexcept;
  void end_because(bool orderly, const error& why) noexcept;
  void close_rails() noexcept;

  executor_core& home_;
  const std::shared_ptr<registry> registry_;
  rails_set_up set_up_;
  capabilities capabilities_;
  std::string peer_;

  std::unique_ptr<link> first_;  // before start()
  std::deque<rail> rails_;
  rail* out_ = nullptr;  // the rail over which messages are sent; null: no rail is open
  link_tasks tasks_{*this};
  outage outage_;
  joining joining_;
  own_memory own_{*this, *this, tasks_, outage_};
  peer_memory peers_;
  incoming incoming_{*this, own_};
  outgoing outgoing_{*this, set_up_.sliced};
  fences fences_{*this, incoming_};
  refusals refusals_{*this, own_, peers_};
  watch watch_{*this, *this};
  news news_{*this, peer_, registry_->rails};

  bool greeted_ = false;      // the peer has sent its greeting
  bool finish_sent_ = false;  // `finish` was sent over the latest message rail
};

}  // namespace weft::net::rails

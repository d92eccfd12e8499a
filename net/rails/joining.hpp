// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/net/back_off.hpp>
#include <weft/net/link/join.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/rails/control.hpp>
#include <weft/net/rails/link_tasks.hpp>
#include <weft/net/rails/rail.hpp>
#include <weft/net/rails/rail_owner.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/timer.hpp>
#include <weft/runtime/task.hpp>

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

/// What it takes to set up more links like a connection's first one.
struct join_options {
  std::vector<transport*> ways{};            ///< the device's transports; link_request::fabric is an index into them
  std::vector<rail_route> routes;            ///< one for each rail; the first is that of the existing link
  std::vector<std::string> own_addresses{};  ///< of the accepting end: where it listens
  bool learns_addresses = false;             ///< all routes have the same address, and the peer may name others
  bool connects = false;                     ///< this end asks for the rails
  connection_id id{};                        ///< zero: the peer does not know rails
  std::string source{};                      ///< set_up_options::source, at the end that connects over a single fabric
  set_up_options how;                        ///< without pointers to the user's memory
};

/// Gets links for the rails of a connection: the end that connects asks for them, and asks again for lost ones; the
/// other end admits them.
class joining {
 public:
  /// The link, as `joining` sees it.
  class host {
   public:
    /// Posts what waits for a rail, because a link has started.
    virtual void link_began() noexcept = 0;
    /// An attempt to get a link for a rail has failed. May end the connection.
    virtual void not_joined(const rail& which, const rail_route& over, const error& why) = 0;

   protected:
    ~host() = default;
  };

  /// `wanted` are the capabilities that each link must have, and `peer` is the connection's name of the peer: both must
  /// outlive this object. Throws the system's error, or std::bad_alloc.
  joining(rail_owner& owner, host& home, link_tasks& tasks, join_options&& how, const capabilities& wanted,
          std::string_view peer);
  joining(const joining&) = delete;
  joining& operator=(const joining&) = delete;

  /// Sets the parameters of later links, which are those of the first.
  void begin(const link_parameters& parameters) noexcept { parameters_ = parameters; }
  [[nodiscard]] const join_options& options() const noexcept { return set_up_; }
  [[nodiscard]] const rail_route& route(std::size_t number) const noexcept { return set_up_.routes[number]; }
  /// True if the fabric's device is known to be at another NUMA node than the pool's memory.
  [[nodiscard]] bool is_far(const transport& way) const noexcept;

  /// Handles the peer's greeting. The accepting end sends its addresses and a greeting of its own; the connecting end
  /// uses the addresses that it was sent, and asks for all rails.
  void greeted(rail& over) noexcept;
  /// Stores an address at which the peer listens. Refuses the peer if it sends too many, or is not the accepting end.
  void learn_address(const control& said) noexcept;
  /// Starts to ask for every rail that is absent and not joining, if this end connects. A rail for which an attempt is
  /// due later waits for that.
  void ask_for_all() noexcept;
  /// The same, at once, and with short pauses again.
  void ask_anew() noexcept;
  /// Admits a rail that the peer asks to add, or rejects it.
  void asked(const join& said, std::unique_ptr<link_request> request) noexcept;
  /// Keeps the rail's links of this and earlier epochs from beginning, because the peer has given them up.
  void shut(std::size_t number, std::uint32_t epoch) noexcept;
  /// Stops asking for rails, and wakes tasks that wait until a link is gone.
  void stop() noexcept;

  void rail_opened(std::size_t number) noexcept { places_[number].opened_at = owner_.home().now(); }
  /// Wakes a task that waits until the link of the rail is gone.
  void link_gone(std::size_t number) noexcept { places_[number].gone.set(); }
  /// Asks again for a rail whose link is gone, maybe after a pause, if this end connects.
  void rail_closed(std::size_t number) noexcept;

  /// The earliest time at which a link that waits for the peer's first message is to be given up.
  [[nodiscard]] std::optional<time_point> first_deadline() const noexcept;
  /// Gives up links that have waited too long for the peer's first message.
  void give_up_unopened() noexcept;

 private:
  // The timer of the next attempt to get a rail back. It is not a task that sleeps, because an executor does not end
  // before its tasks.
  class redial final : public weft::detail::timer {
   public:
    redial(joining& of, std::size_t number) noexcept : of_(of), number_(number) {}

   private:
    void expired() noexcept override { of_.ask_again(number_); }

    joining& of_;
    const std::size_t number_;
  };

  // The state of getting links for one rail. Each attempt has an epoch of its own, because an attempt that has failed
  // at this end may have succeeded at the peer. A link does not begin if the peer has shut its epoch.
  struct place {
    place(joining& of, std::size_t number) : again(of, number), pauses(of.new_pauses()) {}

    redial again;
    back_off pauses;
    bool is_joining = false;
    std::uint32_t asked_epoch = 0;
    std::uint32_t shut_epoch = 0;
    std::optional<time_point> opened_at{};
    time_point began_at{};
    event gone;  // set when the link is gone, or the connection ends
  };

  [[nodiscard]] back_off new_pauses() noexcept;
  void tell_addresses(rail& over) noexcept;
  void use_told_addresses() noexcept;
  void ask_again(std::size_t number) noexcept;
  void ask_later(std::size_t number, duration pause) noexcept;
  static task<> try_rail(joining& self, std::size_t number);
  static task<bool> ask_for_rail(joining& self, std::size_t number);
  static task<> admit(joining& self, join said, std::unique_ptr<link_request> request);
  static task<rail_start> prepare(joining& self);
  [[nodiscard]] bool may_begin(std::size_t number, std::uint32_t epoch) const noexcept;
  void begin(std::size_t number, transport& way, const join& of_peer, rail_start&& how);
  [[nodiscard]] set_up_options set_up_of(std::span<const std::byte> private_data) const;

  rail_owner& owner_;
  host& host_;
  link_tasks& tasks_;
  join_options set_up_;
  const capabilities& wanted_;
  const std::string_view peer_;
  link_parameters parameters_{};
  std::uint64_t pauses_seed_ = 0;
  std::deque<place> places_;       // one for each rail
  std::vector<std::string> told_;  // where the peer listens, in its order; empty entry: this end cannot use the address
};

}  // namespace weft::net::rails

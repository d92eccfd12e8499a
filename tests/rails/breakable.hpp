// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/usage.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/sync/event.hpp>

#include <set>

#include "kit/forwarding_link.hpp"
#include "kit/forwarding_transport.hpp"

// A transport whose links a test may break, and that counts what goes over them.
namespace weft::test {

/// Longer than any test that does not hang.
inline constexpr std::chrono::seconds forever{300};
inline constexpr mr::usage open_wide = mr::usage::write_dst | mr::usage::read_src | mr::usage::atomic_dst;
inline constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// One end of a link that can be broken.
class breakable_link;

/// One cable: all the links that a transport has made.
struct cable {
  std::set<breakable_link*> links{};           ///< those that there are, of both ends
  std::size_t made = 0;                        ///< ever
  std::uint64_t posted = 0;                    ///< requests, over all of them
  std::uint64_t moved = 0;                     ///< writes and reads among them
  std::vector<std::string> addresses{};        ///< that were connected to, in their order
  std::size_t attempts = 0;                    ///< to connect over it
  bool is_down = false;                        ///< nobody connects over it
  std::size_t lost_answers = 0;                ///< attempts to connect that fail although the peer has accepted them
  bool is_removed = false;                     ///< listening over it fails
  bool is_silent = false;                      ///< takes requests and does nothing with them
  bool loses_sends = false;                    ///< completes sends that the peer never gets
  net::landing_place landing{};                ///< of the ends of its transport
  std::vector<net::landing_place> landings{};  ///< those that links were told of, in the order in which they started
  event* exposes = nullptr;                    ///< what expose() waits for first; null: nothing
  std::size_t exposing = 0;                    ///< calls of expose() so far
  bool has_no_memory = false;                  ///< expose() finds no memory, once it has waited
  event* accepts = nullptr;                    ///< what accept() waits for once there is a link; null: nothing
  bool hides_refused_keys = false;             ///< does not say which key an access that was refused had named
  /// Asked before each request: if it says so, the cable is cut first, and this is forgotten.
  std::function<bool(const net::work_request&)> is_cut_before{};
  /// What is put around each link that is made; empty: nothing.
  std::function<std::unique_ptr<net::link>(std::unique_ptr<net::link>)> covers{};

  [[nodiscard]] std::unique_ptr<net::link> cover(std::unique_ptr<net::link> bare) const {
    return covers ? covers(std::move(bare)) : std::move(bare);
  }
  void cut();
  /// Cut before the n-th request from now on that is of this kind.
  void cut_before(net::work_kind kind, unsigned n = 1) {
    is_cut_before = [kind, n, seen = 0u](const net::work_request& work) mutable {
      return work.kind == kind && ++seen == n;
    };
  }
  /// As if the processes at its ends were killed: their systems end what they had, in order.
  void end_in_order();
};

class breakable_link final : public forwarding_link {
 public:
  breakable_link(std::shared_ptr<cable> of, std::unique_ptr<net::link> inner)
      : forwarding_link(std::move(inner)), cable_(std::move(of)) {
    cable_->links.insert(this);
    ++cable_->made;
  }
  ~breakable_link() override { cable_->links.erase(this); }

  void start(net::link_events& events, const net::link_parameters& how) override {
    events_ = &events;
    cable_->landings.push_back(how.landing);
    forwarding_link::start(events, how);
  }
  [[nodiscard]] bool takes_runs() noexcept override { return false; }
  void post(net::work_request& work) noexcept override {
    ++cable_->posted;
    if (work.kind == net::work_kind::write || work.kind == net::work_kind::read) ++cable_->moved;
    if (cable_->is_cut_before && cable_->is_cut_before(work)) {
      cable_->is_cut_before = nullptr;
      is_cut_ = true;
    }
    if (cable_->loses_sends && work.kind == net::work_kind::send) return lost_.push_back(&work);
    if (is_cut_ || cable_->is_silent) return swallowed_.push_back(&work);
    forwarding_link::post(work);
  }
  void ring() noexcept override {
    if (std::exchange(is_cut_, false)) return cable_->cut();
    for (net::work_request* each : std::exchange(lost_, {})) events_->completed(*each, net::work_status::done);
    forwarding_link::ring();
  }
  void abort(std::string_view why) noexcept override {
    for (net::work_request* each : std::exchange(lost_, {})) forwarding_link::post(*each);
    for (net::work_request* each : std::exchange(swallowed_, {})) forwarding_link::post(*each);
    forwarding_link::abort(why);
  }
  [[nodiscard]] task<net::exposed_place> expose(mr::slice memory, mr::usage uses,
                                                mr::detail::peer_gate* gate) override {
    ++cable_->exposing;
    if (cable_->exposes != nullptr) co_await cable_->exposes->wait();
    if (cable_->has_no_memory) throw std::bad_alloc();
    co_return co_await forwarding_link::expose(memory, uses, gate);
  }
  [[nodiscard]] std::optional<net::refused_access> refusal() const noexcept override {
    auto said = forwarding_link::refusal();
    if (said && cable_->hides_refused_keys) said->key.reset();
    return said;
  }

 private:
  const std::shared_ptr<cable> cable_;
  net::link_events* events_ = nullptr;
  std::vector<net::work_request*> swallowed_;  // in order; they end with the link
  std::vector<net::work_request*> lost_;       // likewise, until they are completed
  bool is_cut_ = false;
};

// Each may go while the others are told.
inline void cable::cut() {
  const std::set<breakable_link*> all = links;
  for (breakable_link* each : all) {
    if (links.contains(each)) each->abort("the test has cut the cable");
  }
}

inline void cable::end_in_order() {
  const std::set<breakable_link*> all = links;
  for (breakable_link* each : all) {
    if (links.contains(each)) each->shut_down();
  }
}

/// Makes links over `inner`, all of one cable.
class breakable_transport final : public forwarding_transport {
 public:
  breakable_transport(std::string name, std::shared_ptr<cable> of, std::unique_ptr<net::transport> inner)
      : forwarding_transport(std::move(inner), wrappers_of(of)), name_(std::move(name)), cable_(std::move(of)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] net::landing_place landing() const noexcept override { return cable_->landing; }
  [[nodiscard]] task<net::new_link> connect(std::string_view address, const net::set_up_options& options) override {
    ++cable_->attempts;
    cable_->addresses.emplace_back(address);
    if (cable_->is_down) throw system_error(ENETUNREACH, "the test has pulled the cable");
    net::new_link made = co_await inner().connect(address, options);
    if (cable_->lost_answers != 0) {
      --cable_->lost_answers;
      throw system_error(ETIMEDOUT, "the test has lost the answer");
    }
    made.link = around(std::move(made.link));
    co_return made;
  }

 private:
  class request final : public forwarding_request {
   public:
    request(std::shared_ptr<cable> of, std::unique_ptr<net::link_request> inner) noexcept
        : forwarding_request(std::move(inner)), cable_(std::move(of)) {}
    [[nodiscard]] task<std::unique_ptr<net::link>> accept(const net::set_up_options& options) override {
      const std::shared_ptr<cable> over = cable_;  // the request may go meanwhile
      auto made = co_await forwarding_request::accept(options);
      if (over->accepts != nullptr) co_await over->accepts->wait();
      co_return made;
    }

   private:
    const std::shared_ptr<cable> cable_;
  };
  class listener final : public forwarding_listener {
   public:
    listener(std::shared_ptr<cable> of, std::unique_ptr<net::link_listener> inner) noexcept
        : forwarding_listener(std::move(inner)), cable_(std::move(of)) {}
    [[nodiscard]] task<std::unique_ptr<net::link_request>> next() override {
      if (cable_->is_removed) throw error(errc::connection_failed, "the test has removed the device");
      co_return co_await forwarding_listener::next();
    }

   private:
    const std::shared_ptr<cable> cable_;
  };

  static transport_wrappers wrappers_of(const std::shared_ptr<cable>& of) {
    return {.link = [of](auto bare) { return std::make_unique<breakable_link>(of, of->cover(std::move(bare))); },
            .request = [of](auto bare) { return std::make_unique<request>(of, std::move(bare)); },
            .listener = [of](auto bare) { return std::make_unique<listener>(of, std::move(bare)); }};
  }

  const std::string name_;
  const std::shared_ptr<cable> cable_;
};

}  // namespace weft::test

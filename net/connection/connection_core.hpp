// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/connection_end.hpp>
#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/heartbeat.hpp>
#include <weft/net/connection/operation_owner.hpp>
#include <weft/net/connection/receiving.hpp>
#include <weft/net/connection/sending.hpp>
#include <weft/net/connection/staging.hpp>
#include <weft/net/link/connection_places.hpp>
#include <weft/net/link/receive_memory.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace weft::net {

/// The state behind a connection's handle. It outlives the handle until its link has released everything.
///
/// Its parts implement the connection's contract on top of a link. They are the shared state, sending, receiving, the
/// heartbeat, and closing; each knows only the parts before it. This class passes each event of the link to the parts
/// concerned. On one executor only, except reap(), statistics() and rails().
class connection_core final : public operation_owner,
                              private link_events,
                              private sending::carrier_maker,
                              private weft::detail::remote_work {
 public:
  /// `receives` is the result of find_receives().
  connection_core(std::shared_ptr<device_state> device, new_link established, receive_memory receives,
                  const connection_options& options);
  connection_core(const connection_core&) = delete;
  connection_core& operator=(const connection_core&) = delete;
  ~connection_core();
  /// Keeps the connection's place at the listener that accepted it, until the link has closed.
  void keep_place(std::unique_ptr<connection_place> place) noexcept { place_ = std::move(place); }
  /// Closes or aborts the connection in the background, then frees the core; on the executor's thread between two runs,
  /// runs the executor until that is done. Called when the handle is destroyed, on any thread.
  static void reap(std::unique_ptr<connection_core> core, bool abort) noexcept;

  [[nodiscard]] connection_state& state() noexcept { return state_; }
  [[nodiscard]] sending& out() noexcept { return sending_; }
  [[nodiscard]] connection_end& end() noexcept { return end_; }
  [[nodiscard]] const std::shared_ptr<link_keys>& keys() const noexcept { return state_.keys; }
  void confirm_retired(std::uint64_t key);
  void abort(std::string_view why) noexcept { state_.abort(why); }

  [[nodiscard]] executor_core& home() const noexcept { return state_.home; }
  [[nodiscard]] mr::pool& pool() const noexcept;
  [[nodiscard]] const capabilities& properties() const noexcept { return state_.properties(); }
  [[nodiscard]] connection_statistics statistics() const noexcept {
    return state_.statistics.snapshot(state_.home.now());
  }
  [[nodiscard]] std::vector<rail_statistics> rails() const { return state_.carrier.link->rails(); }
  /// The fabric that carries the connection.
  [[nodiscard]] const transport& fabric() const noexcept { return *state_.carrier.fabric; }
  [[nodiscard]] std::string_view passed_over() const noexcept { return state_.carrier.passed_over; }
  [[nodiscard]] std::span<const std::byte> peer_private_data() const noexcept;

  [[nodiscard]] std::optional<message> try_receive() {
    auto taken = receiving_.try_receive();
    if (taken) heartbeat_.heard();
    return taken;
  }

  // operation_owner
  void start(transfer& item) override { sending_.start(item); }
  [[nodiscard]] taken take_now(transfer& item, weft::detail::promise_base& waiter) noexcept override {
    return sending_.may_be_at_once() ? sending_.take_now(item, waiter) : taken::no;
  }
  void stop(transfer& item) noexcept override { stop_operation(item); }
  void abandon(transfer& item) noexcept override { abandon_operation(item); }
  void start(batch_operation& all) override { sending_.start(all); }
  void stop(batch_operation& all) noexcept override { stop_operation(all); }
  void abandon(batch_operation& all) noexcept override { abandon_operation(all); }
  void start(list_operation& all) override { sending_.start(all); }
  void stop(list_operation& all) noexcept override { stop_operation(all); }
  void abandon(list_operation& all) noexcept override { abandon_operation(all); }
  void start(recv_operation& item) override { receiving_.start(item); }
  [[nodiscard]] taken take_now(recv_operation& item, weft::detail::promise_base& waiter) noexcept override {
    const taken how = receiving_.take_now(item, waiter);
    if (how != taken::no) heartbeat_.heard();
    return how;
  }
  void stop(recv_operation& item) noexcept override { receiving_.stop(item); }
  void abandon(recv_operation& item) noexcept override { receiving_.abandon(item); }
  [[nodiscard]] std::optional<named_place> find(const mr::remote_slice& where, peer_names& names,
                                                std::optional<error>& why_not) const noexcept override {
    if (state_.carrier.agreed.rails) [[unlikely]] {
      const bool is_beyond_some = where.on(mr::place_behind_owner) != nullptr;
      if (is_beyond_some && !where.allows(mr::usage::flush_persistent)) return std::nullopt;
      names = attached_link::names_of(where);
    }
    return state_.carrier.find(where, why_not);
  }
  [[nodiscard, gnu::cold]] bool has_to_tell(std::optional<error>& why_not) const noexcept override;
  [[nodiscard]] std::string_view peer() const noexcept override { return state_.carrier.link->peer(); }

 private:
  // stop() and abandon() also continue an orderly close, which an operation that was not posted may have held up.
  template <class Operation>
  void stop_operation(Operation& item) noexcept {
    sending_.stop(item);
    end_.advance();
  }
  template <class Operation>
  void abandon_operation(Operation& item) noexcept {
    sending_.abandon(item);
    end_.advance();
  }

  // link_events
  void completed(work_request& work, work_status status) noexcept override;
  void run_advanced(work_run& run, std::size_t count, work_status status) noexcept override;
  void received(receive_work& work, const arrival& what) noexcept override;
  void receive_flushed(receive_work& work) noexcept override { receiving_.flushed(work); }
  void input_over() noexcept override { end_.input_over(); }
  void ended(bool orderly, const error& why) noexcept override { end_.link_ended(orderly, why); }
  void closed() noexcept override;
  [[gnu::cold]] void came_late(std::uint64_t key, exposure_end how) noexcept override;

  // sending::carrier_maker
  [[nodiscard]] sending::carrier& make_carrier() override;

  void start_link();
  void received_control(receive_slot& slot, receiving::meaning content) noexcept;
  [[gnu::cold]] void hear_of_device(const receive_slot& slot) noexcept;
  [[gnu::cold]] void invalidated(std::uint64_t invalidated_key) noexcept;
  static task<> end_in_background(connection_core& self);
  static void reap_at_home(std::unique_ptr<connection_core> core) noexcept;
  // remote_work: the handle was destroyed on another thread
  void run_on_executor() noexcept override { reap_at_home(std::unique_ptr<connection_core>(this)); }

  std::unique_ptr<connection_place> place_;
  connection_state state_;
  sending sending_;
  receiving receiving_;
  heartbeat heartbeat_;
  connection_end end_;
  std::unique_ptr<staging> staging_;  // null until device memory or a persistent flush needs it
  bool reaped_abruptly_ = false;
  weft::detail::root_handle<void> reaper_;  // end_in_background(), made in advance, because memory may be short later
};

}  // namespace weft::net

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/rails/control.hpp>
#include <weft/net/rails/handles.hpp>
#include <weft/net/rails/link_tasks.hpp>
#include <weft/net/rails/outage.hpp>
#include <weft/net/rails/rail.hpp>
#include <weft/net/rails/rail_owner.hpp>
#include <weft/runtime/task.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace weft::net::rails {

/// The memory of this end that is exposed to the peer: its keys on each rail, and their announcements. See peer_memory
/// for the memory that the peer exposes.
class own_memory final : public exposed_memory::observer {
 public:
  /// The link, as own_memory sees it.
  class host {
   public:
    /// The rail over which the peer's small accesses come; null if the peer has not chosen one.
    [[nodiscard]] virtual rail* rail_of_accesses() const noexcept = 0;
    /// A key has been revoked, or will not be opened: messages may have waited for that.
    virtual void keys_closed() noexcept = 0;

   protected:
    ~host() = default;
  };

  own_memory(rail_owner& owner, host& home, link_tasks& tasks, outage& absence) noexcept
      : owner_(owner), host_(home), tasks_(tasks), outage_(absence) {}
  own_memory(const own_memory&) = delete;
  own_memory& operator=(const own_memory&) = delete;

  /// Exposes memory, and yields its handle. Waits for a key on one rail alone, and asks the other rails in the
  /// background afterwards: if the task is destroyed while it waits, no key stays open.
  task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate);
  void revoke(std::uint64_t handle, revocation& who) noexcept;
  /// Revokes the keys of memory that the peer gives back. False if the memory is not exposed, and is none of the last
  /// pieces that were taken back.
  [[nodiscard]] bool give_back(std::uint64_t handle) noexcept;
  /// Notes that the message which gives the memory back has arrived.
  void came_back(std::uint64_t handle) noexcept;
  /// Whether a key may still open memory that is being given back.
  [[nodiscard]] bool is_closing(std::uint64_t handle) noexcept;

  /// Starts to open keys on this rail, which is up, for all exposed memory that has none there yet.
  void rail_came(std::size_t number) noexcept;
  void rail_closed(std::size_t number) noexcept;
  /// Answers the peer's question about a handle, control_kind::names, once all keys on the rails are announced.
  void asked(const rail& over, const control& said) noexcept;
  /// Tells the peer all keys, because it may have missed some.
  void announce_all() noexcept;
  static void tell_withdrawn(rail& over, std::uint64_t handle, bool at_deadline) noexcept;
  [[nodiscard]] withdrawn_memory& withdrawn() noexcept { return withdrawn_; }

 private:
  // A question of the peer's about a handle. Once no task is asking a rail for keys, it is answered over the rail on
  // which it came, or dropped if that rail has another epoch by then. The peer asks about one handle at a time, so its
  // next question over a rail replaces the one before, however many it asks while keys are being opened.
  struct question {
    std::uint64_t number;
    std::uint64_t handle;
    std::uint32_t epoch;
  };
  class naming;
  class slot_claim;

  task<std::optional<std::size_t>> open_first_key(exposed_memory& what);
  task<> open_key(exposed_memory& what, std::size_t on);
  static task<> expose_over(own_memory& self, std::size_t number);
  void announce(const exposed_memory& what, std::size_t on) noexcept;
  void answer_questions() noexcept;
  void close_keys(exposed_memory& what) noexcept;
  void key_revoked(exposed_memory& of) noexcept override;
  [[nodiscard]] exposed_memory* find(std::uint64_t handle) noexcept;
  void free_if_over(exposed_memory& what) noexcept;

  rail_owner& owner_;
  host& host_;
  link_tasks& tasks_;
  outage& outage_;
  std::vector<std::unique_ptr<exposed_memory>> all_;
  std::vector<std::uint32_t> free_slots_;  // free places in all_, with capacity for every place
  std::size_t claimed_ = 0;                // places in all_ that tasks have reserved
  std::size_t naming_ = 0;                 // tasks that are asking a rail for keys
  // By the rail on which they came.
  std::array<std::optional<question>, max_rails> questions_{};
  withdrawn_memory withdrawn_;
};

}  // namespace weft::net::rails

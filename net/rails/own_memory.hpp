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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace weft::net::rails {

/// The memory of this end that is exposed to the peer: its keys on each rail, and what the peer is told of them. See
/// peer_memory for the other end.
class own_memory final : public exposed_memory::observer {
 public:
  /// The link, as this part of it sees it.
  class host {
   public:
    /// The rail that the peer's accesses come over; null if the peer has not chosen one.
    [[nodiscard]] virtual rail* rail_of_accesses() const noexcept = 0;
    /// No key opens some memory any more: messages may have waited for that.
    virtual void keys_closed() noexcept = 0;

   protected:
    ~host() = default;
  };

  own_memory(rail_owner& owner, host& home, link_tasks& tasks, outage& absence) noexcept
      : owner_(owner), host_(home), tasks_(tasks), outage_(absence) {}
  own_memory(const own_memory&) = delete;
  own_memory& operator=(const own_memory&) = delete;

  /// Asks one rail here, and the others in the background once it has given a key. So this task can be destroyed while
  /// it waits, and no key is open then.
  task<exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate);
  void revoke(std::uint64_t handle, revocation& who) noexcept;
  /// The peer gives the memory back. False if it was not exposed.
  [[nodiscard]] bool give_back(std::uint64_t handle) noexcept;
  /// Whether a key of memory that is given back may still open it.
  [[nodiscard]] bool is_closing(std::uint64_t handle) noexcept;

  /// Opens keys for all exposed memory that has none on this rail yet, which is up.
  void rail_came(std::size_t number) noexcept;
  void rail_closed(std::size_t number) noexcept;
  /// The peer asks for all that is to be known about a handle, in control_kind::names.
  void asked(const rail& over, const control& said) noexcept;
  /// Tells the peer all keys, because it may have missed some.
  void announce_all() noexcept;
  static void tell_withdrawn(rail& over, std::uint64_t handle, bool at_deadline) noexcept;
  [[nodiscard]] withdrawn_memory& withdrawn() noexcept { return withdrawn_; }

 private:
  // How many tasks are asking a rail for keys, and the peer's questions that are answered once there are none: their
  // number, and the rail and epoch of each.
  struct question {
    std::uint64_t number;
    std::uint64_t handle;
    std::uint8_t rail;
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
  std::vector<std::uint32_t> free_slots_;  // free places in all_; there is room for all
  std::size_t claimed_ = 0;                // places in all_ that tasks have reserved
  std::size_t naming_ = 0;
  std::vector<question> questions_;
  withdrawn_memory withdrawn_;
};

}  // namespace weft::net::rails

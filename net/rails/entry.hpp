// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/rails/control.hpp>

#include <array>
#include <cstdint>

namespace weft::net::rails {

/// A request of the connection's, in its corner.
struct entry {
  /// queued  not given to a rail, or to be given again
  /// issued  with one rail, or in slices with several
  /// handed  its link is done with it, and the peer may not have it yet
  /// lost    its rail has ended first: nobody knows whether the peer has executed it
  /// ended   `result` says how; it completes once those before it have
  enum class state : std::uint8_t { queued, issued, handed, lost, ended };
  static constexpr std::uint64_t nowhere = UINT64_MAX;

  work_request* work = nullptr;
  entry* next = nullptr;
  state phase = state::queued;
  work_status result = work_status::done;
  bool refused = false;               ///< by the peer, because its memory was taken back: it was not executed
  bool is_copy = false;               ///< it belongs to kept_messages, and its sender has been told
  bool spread = false;                ///< in slices over all rails
  bool placing = false;               ///< of a write: all of it has been given to the rails, and they confirm it
  std::uint32_t parts_out = 0;        ///< with the rails
  std::uint64_t bytes = 0;            ///< of its segments
  std::uint64_t given = 0;            ///< to rails, from the beginning on
  std::uint64_t done = 0;             ///< and executed, of that
  std::uint32_t rails_ended = 0;      ///< while it was the oldest with them
  std::uint64_t message = 0;          ///< of a message: its number, once it has been issued
  std::uint64_t asked = 0;            ///< the peer was asked, by that number, because its memory has no name known here
  std::uint32_t answers_due = 0;      ///< over so many rails
  std::uint64_t lost_from = nowhere;  ///< what was given from there on has to be given again
  std::array<std::uint64_t, max_rails> first_over{};  ///< where the first slice over each rail began; nowhere: none
  std::array<std::uint64_t, max_rails> awaited{};     ///< what each rail is to confirm; 0: nothing
  std::uint64_t arrives_with = 0;                     ///< handed: the peer has it once that is confirmed; 0: not asked

  /// Whether it takes one of the peer's receives.
  [[nodiscard]] bool is_message() const noexcept {
    return work->kind == work_kind::send || (work->kind == work_kind::write && work->immediate);
  }
  [[nodiscard]] bool is_atomic() const noexcept {
    return work->kind == work_kind::fetch_add || work->kind == work_kind::compare_swap;
  }
};

}  // namespace weft::net::rails

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/rails/control.hpp>

#include <array>
#include <cstdint>

namespace weft::net::rails {

/// The rails' record of a request, in the request's corner.
struct entry {
  /// queued  not given to a rail, or to be given again
  /// issued  with one rail, or in slices with several
  /// handed  its link has completed it, and the peer may not have it yet
  /// lost    its rail ended first: it is not known whether the peer has executed it
  /// ended   `result` says how; it completes once those before it have
  enum class state : std::uint8_t { queued, issued, handed, lost, ended };
  static constexpr std::uint64_t nowhere = UINT64_MAX;

  work_request* work = nullptr;
  entry* next = nullptr;
  state phase = state::queued;
  work_status result = work_status::done;
  bool refused = false;               ///< by the peer, because the memory was taken back: not executed
  bool is_copy = false;               ///< it belongs to kept_messages, and its send has completed
  bool spread = false;                ///< in slices over all rails
  bool placing = false;               ///< of a write: all of it was given to the rails, which are to confirm it
  std::uint32_t parts_out = 0;        ///< parts with the rails
  std::uint64_t bytes = 0;            ///< of its segments
  std::uint64_t given = 0;            ///< bytes given to rails, from the beginning on
  std::uint64_t done = 0;             ///< bytes of them that were executed
  std::uint32_t rails_ended = 0;      ///< rails that ended while it was the oldest request on them
  std::uint64_t message = 0;          ///< number of a message, once it has been issued
  std::uint64_t asked = 0;            ///< number of the question to the peer about its memory, which has no known name
  std::uint32_t answers_due = 0;      ///< answers to that question that are due, one for each rail
  std::uint64_t lost_from = nowhere;  ///< bytes given from there on have to be given again
  std::array<std::uint64_t, max_rails> first_over{};  ///< where the first slice over each rail began; nowhere: none
  std::array<std::uint64_t, max_rails> awaited{};     ///< the number that each rail is to confirm; 0: none
  std::uint64_t arrives_with = 0;                     ///< handed: confirming this number confirms it; 0: not asked

  /// Whether it takes one of the peer's receives.
  [[nodiscard]] bool is_message() const noexcept {
    return work->kind == work_kind::send || (work->kind == work_kind::write && work->immediate);
  }
  [[nodiscard]] bool is_atomic() const noexcept {
    return work->kind == work_kind::fetch_add || work->kind == work_kind::compare_swap;
  }
};

}  // namespace weft::net::rails

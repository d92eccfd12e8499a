// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/rails/control.hpp>

#include <array>
#include <cstdint>

namespace weft::net::rails {

/// The rails' record of a request: in the request's corner, or in kept_messages for a copy.
struct entry {
  /// queued  to be given to a rail, for the first time or again
  /// issued  given to one rail, or in slices to several
  /// handed  the link has completed it, but the peer may not have it yet
  /// lost    its rail ended first: it is unknown whether the peer has executed it
  /// ended   `result` is set; the request completes once all earlier ones have
  enum class state : std::uint8_t { queued, issued, handed, lost, ended };
  static constexpr std::uint64_t nowhere = UINT64_MAX;

  work_request* work = nullptr;
  entry* next = nullptr;
  state phase = state::queued;
  work_status result = work_status::done;
  bool refused = false;               ///< refused by the peer and not executed, because the memory was taken back
  bool is_copy = false;               ///< it belongs to kept_messages, and its send has completed
  bool spread = false;                ///< goes in slices over all rails
  bool placing = false;               ///< spread writes: the peer was asked to confirm, over each rail with a slice
  std::uint32_t parts_out = 0;        ///< parts in flight on rails
  std::uint64_t bytes = 0;            ///< length of its segments
  std::uint64_t given = 0;            ///< offset of the first byte not given to rails yet
  std::uint64_t done = 0;             ///< bytes of parts that have completed and are not given again
  std::uint32_t rails_ended = 0;      ///< rails after whose end it was the oldest request to be repeated
  std::uint64_t message = 0;          ///< its number among the messages; 0: not issued yet, or not a message
  std::uint64_t asked = 0;            ///< number of the question for the key of its memory; 0: not asked
  std::uint32_t answers_due = 0;      ///< answers due to that question, one from each rail that was open
  std::uint64_t lost_from = nowhere;  ///< offset of the first byte to be given again; nowhere: none is lost
  std::array<std::uint64_t, max_rails> first_over{};  ///< offset of the first slice over each rail; nowhere: no slice
  std::array<std::uint64_t, max_rails> awaited{};     ///< the number to be confirmed over each rail; 0: no number
  std::uint64_t arrives_with = 0;  ///< if `handed`, the number of the question about its arrival; 0: not asked

  /// Whether it takes one of the peer's receives.
  [[nodiscard]] bool is_message() const noexcept {
    return work->kind == work_kind::send || (work->kind == work_kind::write && work->immediate);
  }
  [[nodiscard]] bool is_atomic() const noexcept {
    return work->kind == work_kind::fetch_add || work->kind == work_kind::compare_swap;
  }
};

}  // namespace weft::net::rails

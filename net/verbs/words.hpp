// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/verbs/event_channel.hpp>
#include <weft/runtime/error.hpp>

#include <optional>
#include <string>

// What the libraries report, as errors that a person understands.
namespace weft::net::verbs {

/// Why the libraries find no device: the machine has none, or the kernel has some in `of_kernel`, and the files by
/// which programs reach them are missing, as in a container that was not given them.
[[nodiscard]] std::string words_for_no_device(const std::string& of_kernel = "/sys/class/infiniband");

/// What to do about a device that is there and could not be opened, from the errno of ibv_open_device(3); empty if
/// nothing is known. `file` is its name in /dev/infiniband.
[[nodiscard]] std::string advice_for_opening(int number, const std::string& file);

/// Why a step of a set-up has failed, from the event that came instead of the one that was waited for.
[[nodiscard]] error failure_of(const cm_event& what, const std::string& step);

/// Throws what the result of a step says, which is an errno with a minus if it has failed.
void check(int result, const char* step);

/// Why memory could not be registered, from the errno of ibv_reg_mr(3).
[[nodiscard]] error failure_of_registration(int number, const std::string& what);

// The functions below are called inside callbacks and do not throw: without memory for words, errors have only a code.

/// The connection manager's word for it.
[[nodiscard]] error device_removed(const std::string& device) noexcept;

/// Why a link has ended, from the first completion that tells of an error. See ibv_wc_status_str(3).
[[nodiscard]] error failure_of_request(const ibv_wc& what) noexcept;
[[nodiscard]] error failure_of_receive(const ibv_wc& what) noexcept;

/// What an event about a device, or about a queue of its, makes impossible; none for one that only informs. See
/// ibv_get_async_event(3).
[[nodiscard]] std::optional<error> failure_of(ibv_event_type what, const std::string& device) noexcept;

}  // namespace weft::net::verbs

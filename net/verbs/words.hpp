// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/verbs/event_channel.hpp>
#include <weft/runtime/error.hpp>

#include <optional>
#include <string>

// Turns what the libraries report into errors that a person understands.
namespace weft::net::verbs {

/// Says why the libraries find no device: the machine has none, or the kernel lists some in `of_kernel` but their
/// device files are missing, as in a container that was not given them.
[[nodiscard]] std::string words_for_no_device(const std::string& of_kernel = "/sys/class/infiniband");

/// Advice about a device that exists but could not be opened, by the errno of ibv_open_device(3); empty if weft has no
/// advice for it. `file`: the name of the device's file in /dev/infiniband.
[[nodiscard]] std::string advice_for_opening(int number, const std::string& file);

/// The error of a set-up step that got this event, which reports a failure or is not the expected one.
[[nodiscard]] error failure_of(const cm_event& what, const std::string& step);

/// The error of a registration that failed with this errno of ibv_reg_mr(3).
[[nodiscard]] error failure_of_registration(int number, const std::string& what);

// The functions below are called inside callbacks and do not throw: without memory for the text, errors have a shorter
// text, or only a code.

/// The error of connections whose device the kernel has removed.
[[nodiscard]] error device_removed(const std::string& device) noexcept;

/// The error of a link, from its first failed completion. See ibv_wc_status_str(3).
[[nodiscard]] error failure_of_request(const ibv_wc& what) noexcept;
[[nodiscard]] error failure_of_receive(const ibv_wc& what) noexcept;

/// The error of a refused post. An RNIC may refuse posts because the connection has ended, before an event says so.
[[nodiscard]] error failure_of_post(int number, const char* what) noexcept;

/// The failure that an event about a device or one of its queues reports; empty if it only informs. See
/// ibv_get_async_event(3).
[[nodiscard]] std::optional<error> failure_of(ibv_event_type what, const std::string& device) noexcept;

}  // namespace weft::net::verbs

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace weft::net {

class transport;

/// Opens a device of a transport. `name` is what follows the colon in the name of the device; empty if there is none.
/// Called by device::open(), on any thread. Throws weft::error; for a null result device::open() throws
/// errc::invalid_argument.
using transport_opener = std::function<std::unique_ptr<transport>(std::string_view name)>;

/// Adds a transport from outside this library, for as long as the process lives. device::open() then opens it as "NAME"
/// and "NAME:...", alone, in lists and as a rail; "auto" does not use it. May be called on any thread.
///
/// Throws errc::invalid_argument if the name is empty, is "auto", or has characters other than letters, digits, "_" and
/// "-", if `open` is empty, and if a transport of that name is known already. See docs/transports.md.
void add_transport(const std::string& name, transport_opener open);

}  // namespace weft::net

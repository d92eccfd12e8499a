// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include <nvme/host.hpp>

namespace nvme {

/// Prints the subsystems that the target at `options.address` knows of.
[[nodiscard]] weft::task<> list_subsystems(weft::net::device& device, host_options options);
/// Prints what the subsystem `options.subsystem` says of itself, and its namespaces.
[[nodiscard]] weft::task<> list_namespaces(weft::net::device& device, host_options options);

struct copy_options {
  std::uint32_t name_space = 1;
  std::uint64_t offset = 0;               ///< in the namespace, in bytes: a multiple of its block size
  std::optional<std::uint64_t> length{};  ///< of copy_out(), likewise; none: up to the end of the namespace
  std::string file;                       ///< of copy_out(): "-" is the standard output
  bool verify = false;                    ///< read back what was written, and compare it
};

struct copy_result {
  std::uint64_t bytes = 0;
  double seconds = 0;
};

/// Copies from a namespace to a file. Throws std::invalid_argument for a range that the namespace does not have.
[[nodiscard]] weft::task<copy_result> copy_out(host& from, copy_options options);
/// Copies a file to a namespace, and has the controller make it durable. Throws std::invalid_argument as above, and
/// for a namespace that is read-only; std::runtime_error if `verify` finds something else than was written.
[[nodiscard]] weft::task<copy_result> copy_in(host& to, copy_options options);

}  // namespace nvme

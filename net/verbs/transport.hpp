// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft::net::verbs {

/// Whether this machine has an RDMA device.
[[nodiscard]] bool has_device();
/// The names of the devices that can be opened and have an active port, as ibv_devices(1) lists them.
[[nodiscard]] std::vector<std::string> ready_devices();

/// Opens an RDMA device through rdma-core: an InfiniBand, RoCE or iWARP adapter. `device_name` is its name or one
/// of its IP addresses; empty: the first device that is ready. Throws weft::error: errc::not_supported if there is no
/// such device that can be opened, or it has no reliable connections; the system's error if a device that was given by
/// name cannot be opened.
[[nodiscard]] std::unique_ptr<net::transport> open_transport(std::string_view device_name,
                                                             const verbs_options& options = {});

class rdma_calls;
/// Seam: the functions above, on other libraries than the real ones.
[[nodiscard]] bool has_device(rdma_calls& libraries);
[[nodiscard]] std::vector<std::string> ready_devices(rdma_calls& libraries);
[[nodiscard]] std::unique_ptr<net::transport> open_transport(std::string_view device_name, rdma_calls& libraries,
                                                             const verbs_options& options = {});

}  // namespace weft::net::verbs

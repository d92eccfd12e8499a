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
/// The names of those that can be opened and have an active port, as ibv_devices(1) lists them.
[[nodiscard]] std::vector<std::string> ready_devices();

/// RDMA devices through rdma-core: InfiniBand, RoCE and iWARP adapters. The device of that name, or with no name the
/// first that is ready. Throws weft::error: errc::not_supported where there is none.
[[nodiscard]] std::unique_ptr<net::transport> open_transport(std::string_view device_name,
                                                             const verbs_options& options = {});

class rdma_calls;
/// Seam: the same on other libraries than the real ones.
[[nodiscard]] bool has_device(rdma_calls& libraries);
[[nodiscard]] std::vector<std::string> ready_devices(rdma_calls& libraries);
[[nodiscard]] std::unique_ptr<net::transport> open_transport(std::string_view device_name, rdma_calls& libraries,
                                                             const verbs_options& options = {});

}  // namespace weft::net::verbs

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace weft::net {

class device;

/// A transport to open a device with.
struct found_transport {
  std::unique_ptr<transport> made;
  std::string passed_over{};  ///< why a better transport was not used: device::passed_over()
};

/// Opens a device over the transports that device::open() has found, or over others. Throws errc::invalid_argument if
/// there are none, or too many.
[[nodiscard]] device open_found(std::vector<found_transport> found, const device_options& options = {});

/// Chooses the transport for "auto": an RDMA device if one is ready, else iWARP in user space. `open_rdma` yields null
/// if there is no device, and throws errc::not_supported if none is ready. `open_iwarp` yields null in a build without
/// iWARP. Throws errc::not_supported if nothing is left; other errors are passed on.
[[nodiscard]] found_transport find_transport(const std::function<std::unique_ptr<transport>()>& open_rdma,
                                             const std::function<std::unique_ptr<transport>()>& open_iwarp);

}  // namespace weft::net

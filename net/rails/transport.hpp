// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/rails/slicing.hpp>

#include <memory>
#include <vector>

namespace weft::net::rails {

/// Makes a transport of one to max_rails others. Its connections have a link over each of these, if the peer knows
/// rails; the first link is tried over each, in this order. An address is a list of parts,
/// "10.0.0.2:7471+10.0.1.2:7471". Link k uses transport k and part k; where there are fewer transports or fewer parts,
/// counting begins again at the first. Throws errc::invalid_argument for any other number of transports.
[[nodiscard]] std::unique_ptr<transport> open_transport(std::vector<std::unique_ptr<transport>> ways,
                                                        const slicing& sliced = {});

}  // namespace weft::net::rails

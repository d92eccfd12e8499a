// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/domain.hpp>

namespace weft::net::shm {

/// The protection domain of shared memory: as over iWARP, this process executes what peers ask for, so that the keys,
/// their bounds and rights, and how they are taken back are the same.
using domain = iwarp::domain;

}  // namespace weft::net::shm

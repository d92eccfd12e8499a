// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/task.hpp>

#include <cstdint>

#include "digest.hpp"
#include "file.hpp"
#include "progress.hpp"
#include "session.hpp"

namespace copy {

/// Receives a file of `size` bytes, from our `ready` to our `stored`, gives it its name, and yields the digest, which
/// is that of what the sender has read. `shown` may be null. Throws copy::failure if one of the two sides gives this
/// file up, weft::error if the connection is over; then no trace of the file is left.
[[nodiscard]] weft::task<digest> receive_file(session& link, part_file target, std::uint64_t size, bool sync,
                                              progress* shown);

}  // namespace copy

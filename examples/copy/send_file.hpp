// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/task.hpp>

#include "digest.hpp"
#include "file.hpp"
#include "progress.hpp"
#include "session.hpp"

namespace copy {

/// Sends a file to a peer that has been told of it, from the receiver's `ready` to its `stored`, and yields the digest.
/// `shown` may be null. Throws copy::failure if one of the two sides gives this file up, weft::error if the connection
/// is over.
[[nodiscard]] weft::task<digest> send_file(session& link, source_file& source, progress* shown);

}  // namespace copy

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "findings.hpp"
#include "inventory.hpp"
#include "mask.hpp"
#include "peer_report.hpp"

namespace info {

// For people: lines with a line feed at the end of each.

[[nodiscard]] std::string to_text(const inventory& all);
/// Grave ones first is not the order: they come as they were found, so that a cause stands before its effects. `quiet`
/// leaves out what is ok.
[[nodiscard]] std::string to_text(const findings& found, bool quiet);
[[nodiscard]] std::string to_text(const peer_report& peer);

// For programs: one JSON object.

[[nodiscard]] std::string to_json(const inventory& all);
/// `peer` may be null.
[[nodiscard]] std::string to_json(const inventory& all, const findings& found, const peer_report* peer);
/// What a user sends to weft's authors: the same, with what the machine's own fabrics did. `peer` and `names` may be
/// null; `names` hides host names, addresses and GUIDs.
[[nodiscard]] std::string to_report(const inventory& all, const findings& found, const peer_report* peer,
                                    const peer_report& itself, mask* names);

}  // namespace info

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "findings.hpp"
#include "inventory.hpp"
#include "machine.hpp"

namespace info {

/// RDMA devices, their files, ports, addresses and routes, and the kernel's modules.
void check_rdma(const machine& here, const inventory& all, findings& found);

/// Limits, memory, event driver, sockets, processors and clock: what weft needs of any machine.
void check_system(const machine& here, const inventory& all, findings& found);

/// Both.
[[nodiscard]] findings check_machine(const machine& here, const inventory& all);

}  // namespace info

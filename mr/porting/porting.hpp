// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// For programs that come from libfabric, librpma or verbs: docs/porting.md. <weft/weft.hpp> does not include it.

#include <weft/mr/porting/access_bits.hpp>
#include <weft/mr/porting/enable.hpp>
#include <weft/mr/porting/event_queue.hpp>
#include <weft/mr/porting/pending_region.hpp>
#include <weft/mr/porting/refresh.hpp>
#include <weft/mr/porting/registration_event.hpp>
#include <weft/mr/porting/write_counter.hpp>

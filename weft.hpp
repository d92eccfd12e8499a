// SPDX-License-Identifier: Apache-2.0
#pragma once

// Everything that a program needs to use weft.
#include <weft/mr/buffer.hpp>
#include <weft/mr/cache.hpp>
#include <weft/mr/domain.hpp>
#include <weft/mr/event_queue.hpp>
#include <weft/mr/pool.hpp>
#include <weft/mr/region.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/mr/usage.hpp>
#include <weft/net/connection.hpp>
#include <weft/net/device.hpp>
#include <weft/net/listener.hpp>
#include <weft/net/reconnect.hpp>
#include <weft/runtime/as_result.hpp>
#include <weft/runtime/channel.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/event.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/executor_group.hpp>
#include <weft/runtime/metrics.hpp>
#include <weft/runtime/mutex.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/result.hpp>
#include <weft/runtime/run_on.hpp>
#include <weft/runtime/scope.hpp>
#include <weft/runtime/semaphore.hpp>
#include <weft/runtime/signal.hpp>
#include <weft/runtime/sleep.hpp>
#include <weft/runtime/sync_wait.hpp>
#include <weft/runtime/task.hpp>
#include <weft/runtime/trace_file.hpp>
#include <weft/runtime/when_all.hpp>
#include <weft/runtime/when_any.hpp>
#include <weft/runtime/with_timeout.hpp>

// SPDX-License-Identifier: Apache-2.0
// What fragments about memory of GPUs find declared.
#pragma once

#include "surroundings.hpp"

namespace surroundings_gpu {

using namespace surroundings_plain;

extern std::shared_ptr<mr::memory_device> gpu;
extern mr::device_memory memory;
extern mr::region cache;
extern mr::remote_region theirs;
extern std::vector<std::byte> host;
extern std::string address;
extern void* stream;

}  // namespace surroundings_gpu

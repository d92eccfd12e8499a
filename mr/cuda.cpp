// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cuda.hpp>
#include <weft/mr/cuda/cuda_device.hpp>
#include <weft/mr/cuda/driver.hpp>

namespace weft::mr {

std::shared_ptr<memory_device> open_cuda(const cuda_options& options) {
  return std::make_shared<cuda::cuda_device>(cuda::load_driver(options.library), options.device);
}

}  // namespace weft::mr

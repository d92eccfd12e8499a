// SPDX-License-Identifier: Apache-2.0
#include "stand_in_control.hpp"

#include <dlfcn.h>

// The function stand_in_NAME(). It is called by its type in the header.
#define IN_THE_LIBRARY(name) function<decltype(stand_in_##name)>("stand_in_" #name)

namespace weft::test {

stand_in::stand_in() : library_(::dlopen(library(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ != nullptr) return;
  const char* const why = ::dlerror();
  throw std::runtime_error(why != nullptr ? why : library());
}

// The library stays loaded, as the real one does.
stand_in::~stand_in() {
  fail_nth(0);
  set_driver_version(usual_version);
  set_device_count(usual_devices);
  set_dma_buf(true);
  release();
}

const char* stand_in::library() noexcept { return STAND_IN_CUDA; }

void* stand_in::find(const char* name) const {
  void* const found = ::dlsym(library_, name);
  if (found == nullptr) throw std::runtime_error(std::string("no ") + name + " in " + library());
  return found;
}

void stand_in::seed(std::uint64_t number) const { IN_THE_LIBRARY(seed)(number); }
void stand_in::hold() const { IN_THE_LIBRARY(hold)(); }
void stand_in::release() const { IN_THE_LIBRARY(release)(); }
std::size_t stand_in::outstanding() const { return IN_THE_LIBRARY(outstanding)(); }

void stand_in::fail_next(const char* name, int result) const { IN_THE_LIBRARY(fail_next)(name, result); }
void stand_in::fail_nth(std::uint64_t n, int result) const { IN_THE_LIBRARY(fail_nth)(n, result); }
bool stand_in::has_failed() const { return IN_THE_LIBRARY(has_failed)(); }
std::uint64_t stand_in::calls() const { return IN_THE_LIBRARY(calls)(); }

void stand_in::destroy_context(int device) const { IN_THE_LIBRARY(destroy_context)(device); }
void stand_in::set_driver_version(int version) const { IN_THE_LIBRARY(set_driver_version)(version); }
void stand_in::set_device_count(int count) const { IN_THE_LIBRARY(set_device_count)(count); }
void stand_in::set_dma_buf(bool supported) const { IN_THE_LIBRARY(set_dma_buf)(supported); }

std::vector<std::byte> stand_in::peek(std::span<const std::byte> memory) const {
  std::vector<std::byte> bytes(memory.size());
  const auto copy = IN_THE_LIBRARY(peek);
  if (!copy(memory.data(), bytes.data(), bytes.size())) throw std::out_of_range("not memory of the stand-in");
  return bytes;
}
void stand_in::poke(std::span<std::byte> memory, std::span<const std::byte> bytes) const {
  if (bytes.size() > memory.size()) throw std::out_of_range("more bytes than memory");
  const auto copy = IN_THE_LIBRARY(poke);
  if (!copy(memory.data(), bytes.data(), bytes.size())) throw std::out_of_range("not memory of the stand-in");
}
bool stand_in::is_synchronous(const std::byte* memory) const { return IN_THE_LIBRARY(is_synchronous)(memory); }

std::span<std::byte> stand_in::allocate(int device, std::size_t bytes, foreign_memory kind) const {
  void* const made = IN_THE_LIBRARY(allocate)(device, bytes, kind);
  if (made == nullptr) throw std::bad_alloc();
  return {static_cast<std::byte*>(made), bytes};
}
void stand_in::free(std::span<std::byte> memory) const { IN_THE_LIBRARY(free)(memory.data()); }
stand_in_counts stand_in::counts() const {
  stand_in_counts now;
  IN_THE_LIBRARY(count)(&now);
  return now;
}

}  // namespace weft::test

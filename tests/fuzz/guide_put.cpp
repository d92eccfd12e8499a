// SPDX-License-Identifier: Apache-2.0
// For docs/guide/protocol.md: whatever a peer sends, what parse_put() yields fits a table.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <store.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static std::vector<store::slot> memory(16);
  static store::table table(std::as_writable_bytes(std::span(memory)));
  const auto said = store::parse_put({reinterpret_cast<const char*>(data), size});
  if (!said) return 0;
  table.put(said->key, said->value);
  std::string found;
  const auto& slot = memory[store::place_of(said->key, memory.size())];
  if (store::find_in(slot, said->key, found) != store::outcome::found || found != said->value) std::abort();
  if (store::pack_put(said->key, said->value).size() != size) std::abort();
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Runs a fuzzer without libFuzzer: every seed once, then random changes of seeds. No feedback guides them, so this
// finds less than libFuzzer does; but it runs everywhere, and the same way each time.
//
//   iwarp_engine_fuzzer [--runs N] [--seed N] [FILE|FOLDER]...
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "kit/standard.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using sample = std::vector<std::uint8_t>;
using generator = std::mt19937_64;

constexpr std::size_t longest_sample = 4096;

sample load(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void collect(const std::filesystem::path& from, std::vector<sample>& seeds) {
  if (!std::filesystem::is_directory(from)) return seeds.push_back(load(from));
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(from)) files.push_back(entry.path());
  std::ranges::sort(files);  // the same order on every machine
  for (const auto& file : files) seeds.push_back(load(file));
}

std::size_t below(std::size_t limit, generator& random) { return limit == 0 ? 0 : random() % limit; }

std::uint8_t interesting_byte(generator& random) {
  constexpr std::uint8_t values[] = {0, 1, 2, 7, 0x40, 0x7F, 0x80, 0xC1, 0xFE, 0xFF};
  return random() % 2 == 0 ? values[below(std::size(values), random)] : static_cast<std::uint8_t>(random());
}

void mutate(sample& bytes, const sample& other, generator& random) {
  const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size() + 1, random));
  const auto length = static_cast<std::ptrdiff_t>(1 + below(16, random));
  switch (random() % 5) {
    case 0:
      if (place != bytes.end()) *place ^= static_cast<std::uint8_t>(1U << random() % 8);
      return;
    case 1:
      if (place != bytes.end()) *place = interesting_byte(random);
      return;
    case 2:
      bytes.insert(place, static_cast<std::size_t>(length), interesting_byte(random));
      return;
    case 3:
      bytes.erase(place, place + std::min(length, bytes.end() - place));
      return;
    default:
      const auto from = other.begin() + static_cast<std::ptrdiff_t>(below(other.size() + 1, random));
      const sample piece(from, from + std::min<std::ptrdiff_t>(4 * length, other.end() - from));
      bytes.insert(place, piece.begin(), piece.end());
  }
}

sample variation(const std::vector<sample>& seeds, generator& random) {
  sample bytes = seeds[below(seeds.size(), random)];
  for (std::size_t changes = 1 + below(12, random); changes != 0; --changes)
    mutate(bytes, seeds[below(seeds.size(), random)], random);
  bytes.resize(std::min(bytes.size(), longest_sample));
  return bytes;
}

void run(const sample& bytes) { LLVMFuzzerTestOneInput(bytes.data(), bytes.size()); }

}  // namespace

int main(int count, char** arguments) {
  std::size_t runs = 10000;
  std::uint64_t seed = 1;
  std::vector<sample> seeds{{}};
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--runs" && i + 1 < count)
      runs = std::strtoull(arguments[++i], nullptr, 10);
    else if (argument == "--seed" && i + 1 < count)
      seed = std::strtoull(arguments[++i], nullptr, 10);
    else
      collect(argument, seeds);
  }
  for (const sample& bytes : seeds) run(bytes);
  generator random(seed);
  for (std::size_t i = 0; i < runs; ++i) run(variation(seeds, random));
  std::printf("%zu seeds, %zu variations\n", seeds.size(), runs);
}

// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/owed_answers.hpp>
#include <weft/net/software/access_status.hpp>
#include <weft/net/software/atomic_request.hpp>

#include <algorithm>
#include <cstring>

namespace weft::net::shm {

using software::access_status;

void owed_answers::make_room(std::size_t incoming_reads, bool counts) {
  answers_.resize(std::max<std::size_t>(incoming_reads, 1));
  most_ = incoming_reads;
  counts_ = counts;
}

software::direct_memory* owed_answers::take(const record& header, std::span<const std::byte> content,
                                            std::uint32_t number) noexcept {
  if (count_ == most_) return link_.break_rules("more reads than were agreed on"), nullptr;
  owed_answer asked{.kind = header.kind, .key = header.key, .address = header.address, .total = header.total};
  asked.number = number;
  const bool is_read = header.kind == record_kind::read;
  if (is_read && header.total > largest_message) return link_.break_rules("a length that none has"), nullptr;
  if (!is_read) {
    if (content.size() != sizeof asked.operands) {
      return link_.break_rules("an atomic operation without its operands"), nullptr;
    }
    std::memcpy(&asked.operands, content.data(), sizeof asked.operands);
  }
  // mutant: change a word when
  const auto place = is_read ? shared_.keys().read_place(asked.key, asked.address, asked.total, id_)
                             : shared_.keys().atomic_place(asked.key, asked.address, id_);
  if (place.status != access_status::ok) {
    link_.refuse_access({is_read ? "read" : "change", is_read ? asked.total : sizeof(std::uint64_t), asked.address,
                         asked.key, asked.number},
                        place.status);
    return nullptr;
  }
  answers_[(begin_ + count_++) % answers_.size()] = asked;  // mutant: answer the last question
  return place.direct;
}

bool owed_answers::send_some() noexcept {
  const software::key_table::reader::batch inside(shared_.keys());
  while (count_ != 0 && !life_.has_ended()) {
    owed_answer& oldest = answers_[begin_];
    if (oldest.kind != record_kind::read) {
      if (!answer_atomic(oldest)) return false;
    } else {
      const std::uint64_t left = oldest.total - oldest.moved;
      const std::size_t least = std::min<std::uint64_t>(left, whole_bytes);
      const std::span<std::byte> room = output_.find_room(least, std::min<std::uint64_t>(left, largest_piece));
      if (room.empty()) return false;
      std::span<std::byte> piece = room.subspan(sizeof(record));
      // A piece that is not the last ends at a word boundary.
      if (piece.size() < left) piece = piece.first(piece.size() - (oldest.address + oldest.moved + piece.size()) % 8);
      const auto status = shared_.keys().read(oldest.key, oldest.address + oldest.moved, piece, id_);
      if (status != access_status::ok) {
        link_.refuse_access({"read", oldest.total, oldest.address, oldest.key, oldest.number}, status);
        return false;
      }
      output_.put({.kind = record_kind::answer, .bytes = static_cast<std::uint32_t>(piece.size())});
      oldest.moved += piece.size();
      if (oldest.moved != oldest.total) continue;
    }
    begin_ = (begin_ + 1) % answers_.size();
    --count_;
  }
  return count_ == 0;
}

// Executes the operation now and not on its arrival, because the answers to earlier reads must not contain its effect.
// Finds room for the answer first, so that the operation is executed only once.
bool owed_answers::answer_atomic(const owed_answer& asked) noexcept {
  std::uint64_t previous = 0;
  const std::span<std::byte> room = output_.find_room(sizeof previous, sizeof previous);
  if (room.empty()) return false;
  const bool swaps = asked.kind == record_kind::compare_swap;
  const software::atomic_request operation{
      .operation = swaps ? software::atomic_operation::compare_swap : software::atomic_operation::fetch_add,
      .stag = asked.key,
      .offset = asked.address,
      .operand = asked.operands.operand,
      .mask = swaps ? software::atomic_request::every_bit : 0,
      .compare = swaps ? asked.operands.compare : 0};
  if (const auto status = shared_.keys().atomic(operation, previous, id_, counts_); status != access_status::ok) {
    link_.refuse_access({"change", sizeof previous, asked.address, asked.key, asked.number}, status);
    return false;
  }
  std::memcpy(room.data() + sizeof(record), &previous, sizeof previous);
  output_.put({.kind = record_kind::value, .bytes = sizeof previous});
  return true;
}

}  // namespace weft::net::shm

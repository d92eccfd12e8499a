// SPDX-License-Identifier: Apache-2.0
// The bytes of NVMe over Fabrics, as the example nvme writes and reads them. What is expected is written down here by
// hand from the specifications, so that an offset that is wrong on both ways is noticed.
#include <random>

#include "kit/test.hpp"
#include "kit/thrown.hpp"
#include <nvme/bytes.hpp>
#include <nvme/command.hpp>
#include <nvme/fabrics.hpp>
#include <nvme/identify.hpp>
#include <nvme/status.hpp>

namespace nvme {
namespace {

using weft::test::code_thrown_by;

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int each : values) bytes.push_back(static_cast<std::byte>(each));
  return bytes;
}

std::vector<std::byte> part(std::span<const std::byte> bytes, std::size_t offset, std::size_t count) {
  const auto found = bytes.subspan(offset, count);
  return {found.begin(), found.end()};
}

std::vector<std::byte> text(std::string_view what, std::size_t width, char filler) {
  std::string padded(what);
  padded.resize(width, filler);
  const auto bytes = std::as_bytes(std::span(padded));
  return {bytes.begin(), bytes.end()};
}

identifier some_identifier() {
  identifier made;
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::byte>(0x01 + 0x22 * (i % 8));
  return made;
}

TEST(nvme_command, a_read_has_the_bytes_that_the_specification_wants) {
  command what{.opcode = static_cast<std::uint8_t>(io_opcode::read), .id = 0x1234, .nsid = 7};
  what.data = {
      .type = sgl_type::host_memory_invalidate, .address = 0x1122334455667788, .length = 0x010203, .key = 0xa1b2c3d4};
  put(what, block_fields{.first = 0x0102030405060708, .count = 8, .force_unit_access = true});
  std::array<std::byte, command_bytes> wire;
  encode(what, wire);
  EXPECT_EQ(part(wire, 0, 8), bytes_of({0x02, 0x40, 0x34, 0x12, 7, 0, 0, 0}));
  EXPECT_EQ(part(wire, 24, 16), bytes_of({0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  //
                                          0x03, 0x02, 0x01, 0xd4, 0xc3, 0xb2, 0xa1, 0x4f}));
  EXPECT_EQ(part(wire, 40, 12), bytes_of({8, 7, 6, 5, 4, 3, 2, 1, 7, 0, 0, 0x40}));
  EXPECT_EQ(decode_command(wire), what);
  EXPECT_EQ(fields_of<block_fields>(what).first, 0x0102030405060708U);
  EXPECT_EQ(fields_of<block_fields>(what).count, 8U);
  EXPECT_TRUE(fields_of<block_fields>(what).force_unit_access);
}

TEST(nvme_command, data_in_the_capsule_have_an_offset_and_a_length_of_four_bytes) {
  const command what{.data = {.type = sgl_type::in_capsule, .address = 16, .length = 0x01000000, .key = 0}};
  std::array<std::byte, command_bytes> wire;
  encode(what, wire);
  EXPECT_EQ(part(wire, 24, 16), bytes_of({16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1}));
  EXPECT_EQ(decode_command(wire), what);
}

TEST(nvme_command, a_block_count_of_sixteen_bits_never_wraps) {
  command what;
  what.dwords[2] = 0xffff;
  EXPECT_EQ(fields_of<block_fields>(what).count, 65536U);
  put(what, block_fields{.count = 65536});
  EXPECT_EQ(fields_of<block_fields>(what).count, 65536U);
}

TEST(nvme_command, one_that_is_cut_short_is_malformed) {
  const std::array<std::byte, command_bytes> whole{};
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(code_thrown_by([&] { return decode_command(std::span(whole).first(size)); }), weft::errc::malformed);
}

TEST(nvme_command, a_key_takes_no_more_than_three_bytes_of_length) {
  command what;
  what.data.length = max_keyed_bytes + 1;
  std::array<std::byte, command_bytes> wire;
  EXPECT_EQ(code_thrown_by([&] { encode(what, wire); }), weft::errc::out_of_range);
}

TEST(nvme_command, connect_has_its_fields_where_a_kernel_looks_for_them) {
  command what{.opcode = fabrics_opcode, .nsid = static_cast<std::uint32_t>(fabrics_type::connect)};
  put(what, connect_fields{.format = 0, .queue_id = 3, .queue_size = 127, .keep_alive_ms = 15000});
  std::array<std::byte, command_bytes> wire;
  encode(what, wire);
  EXPECT_EQ(wire[4], std::byte{1});
  EXPECT_EQ(part(wire, 40, 12), bytes_of({0, 0, 3, 0, 127, 0, 0, 0, 0x98, 0x3a, 0, 0}));
  EXPECT_EQ(fields_of<connect_fields>(what).queue_id, 3);
  EXPECT_EQ(fields_of<connect_fields>(what).keep_alive_ms, 15000U);
}

TEST(nvme_command, properties_features_logs_and_datasets_come_back_as_they_went) {
  command what;
  put(what, property_fields{.wide = 1, .offset = 0x14, .value = 0x1122334455667788});
  EXPECT_EQ(what.dwords, (command_dwords{1, 0x14, 0x55667788, 0x11223344}));
  EXPECT_EQ(fields_of<property_fields>(what).wide, 1);
  EXPECT_EQ(fields_of<property_fields>(what).value, 0x1122334455667788U);
  put(what, feature_fields{.feature = 7, .save = true, .value = 0x30003});
  EXPECT_EQ(what.dwords[0], 0x80000007U);
  EXPECT_EQ(fields_of<feature_fields>(what).value, 0x30003U);
  put(what, log_fields{.page = 0x70, .bytes = 0x80000, .offset = 0x1'0000'0004, .retain_event = true});
  EXPECT_EQ(what.dwords[0], 0xffff8070U);
  EXPECT_EQ(what.dwords[1], 1U);
  EXPECT_EQ(fields_of<log_fields>(what).bytes, 0x80000U);
  EXPECT_EQ(fields_of<log_fields>(what).offset, 0x1'0000'0004U);
  put(what, dataset_fields{.ranges = 256, .deallocate = true});
  EXPECT_EQ(fields_of<dataset_fields>(what).ranges, 256);
  EXPECT_EQ(what.dwords[0], 0xffU);
  EXPECT_EQ(what.dwords[1], 4U);
}

TEST(nvme_command, ranges_of_dataset_management_are_sixteen_bytes_each) {
  std::array<std::byte, 32> wire{};
  encode(dataset_range{.first = 0x0102, .count = 0x0304}, std::span(wire).first(16));
  encode(dataset_range{.first = 5, .count = 6}, std::span(wire).last(16));
  EXPECT_EQ(part(wire, 0, 16), bytes_of({0, 0, 0, 0, 4, 3, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(decode_dataset_ranges(wire),
            (std::vector<dataset_range>{{.first = 0x0102, .count = 0x0304}, {.first = 5, .count = 6}}));
  EXPECT_EQ(code_thrown_by([&] { return decode_dataset_ranges(std::span(wire).first(17)); }), weft::errc::malformed);
}

TEST(nvme_completion, status_and_do_not_retry_are_above_the_phase_tag) {
  const completion what{.result = 0x0102030405060708,
                        .queue_head = 5,
                        .queue_id = 0,
                        .id = 0x1234,
                        .status = status::lba_out_of_range,
                        .do_not_retry = true};
  std::array<std::byte, completion_bytes> wire;
  encode(what, wire);
  EXPECT_EQ(part(wire, 0, 16), bytes_of({8, 7, 6, 5, 4, 3, 2, 1, 5, 0, 0, 0, 0x34, 0x12, 0x00, 0x81}));
  EXPECT_EQ(decode_completion(wire), what);
  EXPECT_EQ(code_thrown_by([&] { return decode_completion(std::span(wire).first(15)); }), weft::errc::malformed);
}

TEST(nvme_status, words_name_the_status_and_its_number) {
  EXPECT_EQ(words_of(status::lba_out_of_range), "LBA out of range (0x080)");
  EXPECT_EQ(words_of(status::connect_invalid_parameters, true), "connect parameters invalid (0x182)");
  EXPECT_EQ(words_of(static_cast<status>(0x7ff)), "unknown status (0x7ff)");
  EXPECT_EQ(words_of(reject_reason::invalid_send_queue_size), "an invalid send queue size (4)");
  EXPECT_EQ(words_of(static_cast<reject_reason>(99)), "an unknown reason (99)");
}

TEST(nvme_set_up, private_data_are_as_linux_sends_them) {
  const auto request = encoded(cm_request{.queue_id = 2, .receive_queue_size = 128, .send_queue_size = 127});
  EXPECT_EQ(part(request, 0, 10), bytes_of({0, 0, 2, 0, 128, 0, 127, 0, 0, 0}));
  EXPECT_EQ(try_decode<cm_request>(request)->send_queue_size, 127);
  EXPECT_FALSE(try_decode<cm_request>(std::span(request).first(31)));
  const auto reply = encoded(cm_reply{.receive_queue_size = 128});
  EXPECT_EQ(part(reply, 0, 4), bytes_of({0, 0, 128, 0}));
  EXPECT_EQ(try_decode<cm_reply>(reply)->receive_queue_size, 128);
  const auto rejection = encoded(cm_rejection{.reason = reject_reason::no_resources});
  EXPECT_EQ(part(rejection, 0, 4), bytes_of({0, 0, 6, 0}));
  EXPECT_EQ(try_decode<cm_rejection>(rejection)->reason, reject_reason::no_resources);
  EXPECT_FALSE(try_decode<cm_rejection>({}));
}

TEST(nvme_set_up, private_data_may_be_padded_by_the_fabric) {
  std::array<std::byte, 56> padded{};
  padded[2] = std::byte{1};
  EXPECT_EQ(try_decode<cm_request>(padded)->queue_id, 1);
}

TEST(nvme_set_up, data_of_connect_come_back_as_they_went) {
  connect_data what;
  what.host_id.fill(std::byte{0x55});
  what.controller = 5;
  what.subsystem = "nqn.2014-08.org.example:disk";
  what.host = "nqn.2014-08.org.example:host";
  std::vector<std::byte> wire(connect_data::bytes);
  encode(what, wire);
  EXPECT_EQ(part(wire, 14, 4), bytes_of({0x55, 0x55, 5, 0}));
  EXPECT_EQ(part(wire, 256, 32), text(what.subsystem, 32, '\0'));
  EXPECT_EQ(part(wire, 512, 32), text(what.host, 32, '\0'));
  EXPECT_EQ(decode<connect_data>(wire), what);
  EXPECT_EQ(code_thrown_by([&] { return decode<connect_data>(std::span(wire).first(1023)); }), weft::errc::malformed);
}

TEST(nvme_set_up, a_name_without_an_end_or_with_odd_characters_is_no_name) {
  std::vector<std::byte> wire(connect_data::bytes, std::byte{'n'});
  EXPECT_EQ(decode<connect_data>(wire).subsystem, "");
  EXPECT_EQ(decode<connect_data>(wire).host, "");
  EXPECT_FALSE(is_nqn(std::string("nqn.") + std::string(longest_nqn - 3, 'x')));
  EXPECT_TRUE(is_nqn(std::string("nqn.") + std::string(longest_nqn - 4, 'x')));
  EXPECT_FALSE(is_nqn("nqn.2014\x1b[2J"));
  EXPECT_FALSE(is_nqn("nqn."));
  EXPECT_FALSE(is_nqn("iqn.2014"));
}

TEST(nvme_set_up, identifiers_have_one_form) {
  EXPECT_EQ(to_string(some_identifier()), "01234567-89ab-cdef-0123-456789abcdef");
}

TEST(nvme_set_up, capabilities_carry_the_depth_of_queues) {
  const auto property = encode(controller_capabilities{.max_queue_entries = 127, .ready_timeout = 15});
  EXPECT_EQ(property, 0x20'0f01'007fU);
  EXPECT_EQ(decode_capabilities(property).max_queue_entries, 127);
  EXPECT_EQ(decode_capabilities(property).ready_timeout, 15);
}

TEST(nvme_discovery, the_page_tells_where_subsystems_are) {
  const discovery_entry disk{.family = address_family::ipv6,
                             .port_id = 1,
                             .service = "4420",
                             .subsystem = "nqn.2014-08.org.example:disk",
                             .address = "fd77::2"};
  std::vector<std::byte> page(3072);
  encode(discovery_header{.generation = 9, .entries = 2}, page);
  for (const std::size_t at : {1024U, 2048U}) encode(disk, std::span(page).subspan(at));
  EXPECT_EQ(part(page, 0, 18), bytes_of({9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(part(page, 1024, 10), bytes_of({1, 2, 2, 2, 1, 0, 0xff, 0xff, 32, 0}));
  EXPECT_EQ(part(page, 1024 + 32, 8), text("4420", 8, ' '));
  EXPECT_EQ(part(page, 1024 + 256, 40), text(disk.subsystem, 40, '\0'));
  EXPECT_EQ(part(page, 1024 + 512, 10), text("fd77::2", 10, ' '));
  EXPECT_EQ(part(page, 1024 + 768, 3), bytes_of({1, 1, 1}));
  EXPECT_EQ(decode_discovery_header(page).entries, 2U);
  EXPECT_EQ(decode_discovery_header(page).generation, 9U);
  EXPECT_EQ(decode<discovery_entry>(std::span(page).subspan(2048)), disk);
}

TEST(nvme_discovery, a_page_that_is_cut_short_or_of_another_format_is_malformed) {
  auto page = encoded(discovery_header{.generation = 1});
  EXPECT_EQ(code_thrown_by([&] { return decode_discovery_header(std::span(page).first(1023)); }),
            weft::errc::malformed);
  EXPECT_EQ(code_thrown_by([&] { return decode<discovery_entry>(std::span(page).first(1023)); }),
            weft::errc::malformed);
  page[16] = std::byte{1};
  EXPECT_EQ(code_thrown_by([&] { return decode_discovery_header(page); }), weft::errc::malformed);
}

TEST(nvme_identify, a_controller_has_its_fields_where_a_kernel_looks_for_them) {
  const controller_identity what{.serial = "12345",
                                 .model = "a disk",
                                 .firmware = "0.1",
                                 .max_transfer_shift = 5,
                                 .controller = 0x0102,
                                 .async_event_limit = 3,
                                 .max_commands = 128,
                                 .namespaces = 2,
                                 .optional_commands = optional_command::write_zeroes,
                                 .write_cache = 7,
                                 .sgls = sgl_support::supported | sgl_support::keyed | sgl_support::in_capsule_offset,
                                 .subsystem = "nqn.2014-08.org.example:disk",
                                 .command_capsule_bytes = 64 + 16384,
                                 .completion_capsule_bytes = 16};
  std::vector<std::byte> wire(identify_bytes);
  encode(what, wire);
  EXPECT_EQ(part(wire, 4, 20), text("12345", 20, ' '));
  EXPECT_EQ(part(wire, 24, 40), text("a disk", 40, ' '));
  EXPECT_EQ(part(wire, 64, 8), text("0.1", 8, ' '));
  EXPECT_EQ(part(wire, 77, 7), bytes_of({5, 2, 1, 0, 4, 1, 0}));
  EXPECT_EQ(wire[111], std::byte{1});
  EXPECT_EQ(wire[259], std::byte{3});
  EXPECT_EQ(part(wire, 261, 2), bytes_of({4, 0}));
  EXPECT_EQ(part(wire, 320, 2), bytes_of({1, 0}));
  EXPECT_EQ(part(wire, 512, 10), bytes_of({0x66, 0x44, 128, 0, 2, 0, 0, 0, 8, 0}));
  EXPECT_EQ(wire[525], std::byte{7});
  EXPECT_EQ(part(wire, 536, 4), bytes_of({5, 0, 0x10, 0}));
  EXPECT_EQ(part(wire, 768, 40), text(what.subsystem, 40, '\0'));
  EXPECT_EQ(part(wire, 1792, 12), bytes_of({4, 4, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(decode<controller_identity>(wire), what);
}

TEST(nvme_identify, a_namespace_has_its_fields_where_a_kernel_looks_for_them) {
  const namespace_identity what{
      .blocks = 0x0102030405060708, .block_shift = 12, .write_protected = 1, .id = some_identifier()};
  std::vector<std::byte> wire(identify_bytes);
  encode(what, wire);
  for (const std::size_t at : {0U, 8U, 16U}) EXPECT_EQ(part(wire, at, 8), bytes_of({8, 7, 6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(part(wire, 24, 10), bytes_of({0, 0, 0, 0, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(wire[99], std::byte{1});
  EXPECT_EQ(part(wire, 104, 4), bytes_of({0x01, 0x23, 0x45, 0x67}));
  EXPECT_EQ(part(wire, 128, 4), bytes_of({0, 0, 12, 0}));
  EXPECT_EQ(decode_namespace(wire), what);
  for (const int shift : {0, 8, 21, 255}) {
    wire[130] = static_cast<std::byte>(shift);
    EXPECT_EQ(code_thrown_by([&] { return decode_namespace(wire); }), weft::errc::malformed);
  }
}

TEST(nvme_identify, data_that_are_cut_short_are_malformed) {
  const std::vector<std::byte> wire(identify_bytes - 1);
  EXPECT_EQ(code_thrown_by([&] { return decode<controller_identity>(wire); }), weft::errc::malformed);
  EXPECT_EQ(code_thrown_by([&] { return decode_namespace(wire); }), weft::errc::malformed);
  EXPECT_EQ(code_thrown_by([&] { return decode_namespace_list(wire); }), weft::errc::malformed);
}

TEST(nvme_identify, a_capsule_size_that_overflows_is_cut) {
  std::vector<std::byte> wire(identify_bytes);
  store<std::uint32_t>(wire, 1792, 0xffffffff);
  EXPECT_EQ(decode<controller_identity>(wire).command_capsule_bytes, 0xfffffff0U);
}

TEST(nvme_identify, a_list_of_namespaces_ends_at_zero_and_grows) {
  std::vector<std::byte> wire(identify_bytes);
  encode_namespace_list(std::array<std::uint32_t, 3>{1, 2, 9}, wire);
  EXPECT_EQ(part(wire, 0, 16), bytes_of({1, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(decode_namespace_list(wire), (std::vector<std::uint32_t>{1, 2, 9}));
  store<std::uint32_t>(wire, 4, 1);
  EXPECT_EQ(code_thrown_by([&] { return decode_namespace_list(wire); }), weft::errc::malformed);
  const std::vector<std::uint32_t> many(2000, 1);
  encode_namespace_list(many, wire);  // as many as fit
}

TEST(nvme_identify, descriptors_name_the_namespace_and_its_command_set) {
  std::vector<std::byte> wire(identify_bytes);
  encode(namespace_descriptors{.id = some_identifier()}, wire);
  EXPECT_EQ(part(wire, 0, 8), bytes_of({2, 16, 0, 0, 0x01, 0x23, 0x45, 0x67}));
  EXPECT_EQ(part(wire, 20, 6), bytes_of({4, 1, 0, 0, 0, 0}));
}

TEST(nvme_logs, a_disk_of_software_is_well) {
  EXPECT_EQ(part(encoded(health()), 0, 6), bytes_of({0, 298 & 0xff, 298 >> 8, 100, 10, 0}));
}

TEST(nvme_logs, an_event_names_its_log_page) { EXPECT_EQ(namespaces_changed, 0x040002U); }

}  // namespace
}  // namespace nvme

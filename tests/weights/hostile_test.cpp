// Laws: a pickle cannot execute anything. Every known way to make Python's reader execute code, allocate memory or hang is rejected with an
// input error, quickly, and nothing outside the file is touched; archives with inconsistent headers are rejected too. The valid file from
// which all are derived is accepted, so that none is rejected because of a mistake in the test.
#include "tests/weights/hostile.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "libcore/base/error.h"
#include "libcore/weights/pickle.h"
#include "libcore/weights/pth.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

using namespace hostile;

struct Attack {
  std::string name, data_pkl;
};

std::string refused_read(const std::string& file) {
  try {
    parse_pth(std::as_bytes(std::span(file)));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput) << error.text();
    for (const char letter : error.text()) {
      if (static_cast<unsigned char>(letter) < 0x20 && letter != '\n') return "unprintable";
    }
    return error.text();
  }
  return "";
}

/// Callables that published attacks used to run commands, access the network, read files or load further pickles.
const std::vector<std::pair<std::string, std::string>> kCallables{{"os", "system"},
                                                                  {"posix", "system"},
                                                                  {"nt", "system"},
                                                                  {"subprocess", "Popen"},
                                                                  {"subprocess", "check_output"},
                                                                  {"builtins", "eval"},
                                                                  {"builtins", "exec"},
                                                                  {"__builtin__", "eval"},
                                                                  {"builtins", "__import__"},
                                                                  {"builtins", "getattr"},
                                                                  {"builtins", "open"},
                                                                  {"builtins", "compile"},
                                                                  {"pty", "spawn"},
                                                                  {"runpy", "_run_code"},
                                                                  {"webbrowser", "open"},
                                                                  {"socket", "create_connection"},
                                                                  {"urllib.request", "urlopen"},
                                                                  {"importlib", "import_module"},
                                                                  {"shutil", "rmtree"},
                                                                  {"pathlib", "Path.write_text"},
                                                                  {"operator", "attrgetter"},
                                                                  {"operator", "methodcaller"},
                                                                  {"functools", "partial"},
                                                                  {"ctypes", "CDLL"},
                                                                  {"code", "InteractiveInterpreter"},
                                                                  {"timeit", "timeit"},
                                                                  {"cProfile", "run"},
                                                                  {"pip", "main"},
                                                                  {"pydoc", "pipepager"},
                                                                  {"types", "CodeType"},
                                                                  {"marshal", "loads"},
                                                                  {"_pickle", "loads"},
                                                                  {"torch", "load"},
                                                                  {"torch.hub", "load"},
                                                                  {"torch.jit", "load"},
                                                                  {"torch._utils", "_import_dotted_name"},
                                                                  {"torch._utils", "_rebuild_tensor_v2.__globals__"},
                                                                  {"torch._utils", "_rebuild_from_type_v2"},
                                                                  {"torch.serialization", "load"},
                                                                  {"torch.storage", "_load_from_bytes"},
                                                                  {"numpy", "load"},
                                                                  {"numpy.testing._private.utils", "runstring"},
                                                                  {"collections", "OrderedDict.update"},
                                                                  {"torch", "Size.__class__"},
                                                                  {"asyncio.unix_events", "_UnixSubprocessTransport._start"},
                                                                  {"bdb", "Bdb.run"}};

std::vector<Attack> attacks_by_call(const std::string& victim) {
  std::vector<Attack> attacks;
  const std::string arguments = tuple(text("touch " + victim));
  for (const auto& [module, name] : kCallables) {
    const std::string by_line = global(module, name), by_stack = text(module) + text(name) + "\x93";
    const auto add = [&, module = module, name = name](const std::string& how, const std::string& body) {
      attacks.push_back({cat(module, ".", name, " by ", how), pickle(body)});
    };
    add("GLOBAL", dictionary(by_line + arguments + "R"));
    add("STACK_GLOBAL", dictionary(by_stack + arguments + "R"));
    add("STACK_GLOBAL of remembered names", text(module) + "q\x01" + text(name) + "q\x02" + "h\x01h\x02\x93" + arguments + "R");
    add("INST", "(" + text("touch " + victim) + "i" + module + "\n" + name + "\n");
    add("OBJ", "(" + by_line + text("touch " + victim) + "o");
    add("NEWOBJ", by_line + arguments + "\x81");
    add("NEWOBJ_EX", by_line + arguments + "}\x92");
    add("BUILD", by_line + ")\x81" + dictionary(text("__setstate__")) + "b");
    add("attributes of a dictionary", global("collections", "OrderedDict") + ")R" + dictionary(by_line) + "b");
    add("import alone, after the tensor", dictionary(tensor()) + by_line + "0");
    add("the tensor's hooks",
        dictionary(global("torch._utils", "_rebuild_tensor_v2") +
                   tuple(storage() + integer(0) + integers({2, 3}) + integers({3, 1}) + "\x89" + by_line + arguments + "R") + "R"));
    add("the storage's type", dictionary(tuple(text("storage") + by_line + text("0") + text("cpu") + integer(6)) + "Q"));
    add("a parameter's state", global("torch._utils", "_rebuild_parameter_with_state") + tuple(tensor() + "\x89" + "}" + by_line) + "R");
    add("a key", "}" + by_line + tensor() + "s");
  }
  return attacks;
}

void add_opcodes(std::vector<Attack>& attacks) {
  const auto add = [&](const std::string& name, const std::string& body) { attacks.push_back({name, pickle(body)}); };
  const auto raw = [&](const std::string& name, const std::string& bytes) { attacks.push_back({name, bytes}); };
  const std::string good = dictionary(tensor());
  // Opcodes that weights files do not need.
  add("EXT1", "\x82\x01");
  add("EXT2", std::string("\x83\x01\x00", 3));
  add("EXT4", std::string("\x84\x01\x00\x00\x00", 5));
  add("PERSID", "Pstorage\n");
  add("NEXT_BUFFER", "\x97");
  add("READONLY_BUFFER", good + "\x98");
  add("DUP flood", "K\x01" + std::string(100'000, '2'));
  add("POP", good + "K\x01" + "0");
  add("POP_MARK", good + "(K\x01" + "1");
  for (const char code : std::string("FILSVdgpo")) add(cat("protocol 0's ", code), std::string(1, code) + "1\n");
  for (int code = 0; code < 256; ++code) {
    if (std::string("(N\x88\x89JKM\x8aGX\x8c\x8dUTBC\x8e\x96]})\x8f\x85\x86\x87tl\x91"
                    "ae\x90suqr\x94hjc\x93R\x81"
                    "bQ.\x80\x95")
            .find(static_cast<char>(code)) == std::string::npos) {
      add(cat("opcode ", code), good + static_cast<char>(code));
    }
  }
  for (const int protocol : {0, 1, 6, 255}) raw(cat("protocol ", protocol), std::string("\x80") + static_cast<char>(protocol) + good + ".");
  raw("no protocol", good + ".");
  raw("empty", "");
  raw("one byte", "\x80");
  add("protocol in the middle", std::string("\x80\x02", 2) + good);
  raw("code after STOP", pickle(good) + global("os", "system") + tuple(text("id")) + "R.");
  raw("two pickles", pickle(good) + pickle(good));
  raw("no STOP", std::string("\x80\x02", 2) + good);
  add("nothing on the stack", "");
  add("two values", good + good);
  add("an open mark", good + "(");
}

void add_storages_and_sizes(std::vector<Attack>& attacks) {
  const auto add = [&](const std::string& name, const std::string& body) { attacks.push_back({name, pickle(body)}); };
  // Persistent ids.
  for (const std::string& id :
       {text("storage"), std::string("N"), integer(1), std::string("}"), std::string(")"), tuple(text("module") + text("x")),
        tuple(text("storage")), tuple(text("storage") + text("FloatStorage") + text("0") + text("cpu") + integer(6)),
        tuple(text("storage") + global("torch", "Size") + text("0") + text("cpu") + integer(6)),
        tuple(text("storage") + global("torch", "float32") + text("0") + text("cpu") + integer(6)),
        tuple(text("storage") + global("torch", "FloatStorage") + integer(0) + text("cpu") + integer(6)),
        tuple(text("storage") + global("torch", "FloatStorage") + text("0") + "N" + integer(6)),
        tuple(text("storage") + global("torch", "FloatStorage") + text("0") + text("cpu") + text("6")),
        tuple(text("storage") + global("torch", "FloatStorage") + text("0") + text("cpu") + integer(6) +
              tuple(text("1") + integer(0) + integer(2))),
        tuple(text("storage") + global("torch", "FloatStorage") + text("0") + text("cpu") + integer(6) + "NN")}) {
    add(cat("persistent id ", attacks.size()), dictionary(tensor(id + "Q", 0, {2, 3}, {3, 1})));
  }
  for (const char* key : {"../0", "/etc/passwd", "", "0/../0", "1", "00", "0 ", "-0", "999999999999999999999999", "0\n"}) {
    add(cat("storage key ", key), dictionary(tensor(storage({.key = key}), 0, {2, 3}, {3, 1})));
  }
  // Sizes (CVE-2026-24747: a storage smaller than its tensors need).
  for (const int64_t elements :
       {int64_t{0}, int64_t{5}, int64_t{7}, int64_t{-6}, int64_t{1} << 40, INT64_MAX, INT64_MIN, INT64_MAX / 4 + 1}) {
    add(cat("storage of ", elements), dictionary(tensor(storage({.elements = elements}), 0, {2, 3}, {3, 1})));
  }
  for (const char* type : {"DoubleStorage", "HalfStorage", "ByteStorage", "UntypedStorage", "NoStorage", "FloatTensor", "LongStorage"}) {
    add(cat("storage of type ", type), dictionary(tensor(storage({.type = type}), 0, {2, 3}, {3, 1})));
  }
  const auto sized = [&](int64_t offset, std::vector<int64_t> shape, std::vector<int64_t> strides) {
    add(cat("tensor ", attacks.size()), dictionary(tensor(storage(), offset, shape, strides)));
  };
  sized(1, {2, 3}, {3, 1});
  sized(-1, {2, 3}, {3, 1});
  sized(INT64_MAX, {2, 3}, {3, 1});
  sized(0, {7}, {1});
  sized(0, {2, 3}, {4, 1});
  sized(0, {2, 3}, {-3, -1});
  sized(5, {2}, {-1});
  sized(0, {-2, -3}, {3, 1});
  sized(0, {2, 3}, {3});
  sized(0, {2}, {3, 1});
  sized(0, {INT64_MAX}, {0});
  sized(0, {7}, {0});
  sized(0, {int64_t{1} << 32, int64_t{1} << 32}, {0, 0});
  sized(0, {int64_t{1} << 32, int64_t{1} << 31}, {int64_t{1} << 32, 1});
  sized(0, {3, 2}, {INT64_MAX, 1});
  sized(0, {2, 2}, {INT64_MAX / 2, INT64_MAX / 2 + 2});
  sized(0, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1});
  sized(7, {0}, {1});
  add("one storage with two sizes", "}(" + text("a") + tensor() + text("b") + tensor(storage({.elements = 5}), 0, {5}, {1}) + "u");
  add("one storage with two types", "}(" + text("a") + tensor() + text("b") + tensor(storage({.type = "IntStorage"}), 0, {6}, {1}) + "u");
  add("a tensor of a text", dictionary(global("torch._utils", "_rebuild_tensor_v2") +
                                       tuple(text("s") + integer(0) + integers({1}) + integers({1}) + "\x89}") + "R"));
  add("a tensor without arguments", dictionary(global("torch._utils", "_rebuild_tensor_v2") + ")R"));
  add("sizes in a list",
      dictionary(global("torch._utils", "_rebuild_tensor_v2") + tuple(storage() + integer(0) + "]" + integers({1}) + "\x89}") + "R"));
  add("sizes that are texts", dictionary(global("torch._utils", "_rebuild_tensor_v2") +
                                         tuple(storage() + integer(0) + tuple(text("2")) + integers({1}) + "\x89}") + "R"));
  add("a boolean for a size", dictionary(global("torch._utils", "_rebuild_tensor_v2") +
                                         tuple(storage() + integer(0) + tuple("\x88") + integers({1}) + "\x89}") + "R"));
}

void add_misused_containers(std::vector<Attack>& attacks) {
  const auto add = [&](const std::string& name, const std::string& body) { attacks.push_back({name, pickle(body)}); };
  const std::string good = dictionary(tensor());
  const std::string dict_type = global("collections", "OrderedDict");
  // Containers used as other types.
  add("SETITEM on a list", "]" + text("w") + tensor() + "s");
  add("SETITEM on a tensor", tensor() + text("w") + integer(1) + "s");
  add("SETITEM on a storage", storage() + integer(0) + integer(1) + "s");
  add("SETITEMS on a tuple", ")(" + text("w") + tensor() + "u");
  add("SETITEMS of three", "}(" + text("w") + tensor() + text("x") + "u");
  add("APPEND to a dictionary", "}" + tensor() + "a");
  add("APPEND to a tuple", ")" + tensor() + "a");
  add("APPENDS to a text", text("w") + "(" + tensor() + "e");
  add("ADDITEMS to a list", "](" + tensor() + "\x90");
  add("BUILD of a tensor", tensor() + "}b");
  add("BUILD of a plain dictionary", good + "}b");
  add("BUILD from a tuple", dict_type + ")R" + tuple("N}") + "b");
  add("BUILD of a text", text("w") + "}b");
  add("a list for a key", "}]" + tensor() + "s");
  add("REDUCE of a text", text("os.system") + tuple(text("id")) + "R");
  add("REDUCE of a dictionary", "})R");
  add("REDUCE with a list", dict_type + "]R");
  add("REDUCE of a storage type", global("torch", "FloatStorage") + tuple(integer(1LL << 40)) + "R");
  add("REDUCE of a dtype", global("torch", "float32") + ")R");
  add("REDUCE of Namespace", global("argparse", "Namespace") + ")R");
  add("NEWOBJ of Size", global("torch", "Size") + ")\x81");
  add("NEWOBJ with arguments", dict_type + tuple(text("a")) + "\x81");
  add("NEWOBJ of a text", text("a") + ")\x81");
  add("OrderedDict of numbers", dict_type +
                                    tuple("]K\x01"
                                          "a") +
                                    "R");
  add("encode to rot13", global("_codecs", "encode") + tuple(text("a") + text("rot13")) + "R");
  add("bytearray of a size", global("builtins", "bytearray") + tuple(integer(1LL << 40)) + "R");
  add("STACK_GLOBAL of numbers", "K\x01K\x02\x93");
  add("STACK_GLOBAL of a tuple", text("os") + tuple(text("system")) + "\x93");
  for (const char* close : {"t", "l", "e", "u", "\x90", "\x91"}) add(cat("closing what is not open ", close), "}" + std::string(close));
  for (const char* take : {"a", "s", "R", "b", "Q", "\x81", "\x85", "\x86", "\x87", "q\x01", "\x94", "\x93"})
    add(cat("taking from nothing ", take), take);
  for (const char* take : {"a", "s", "R", "b", "\x86", "\x87"}) add(cat("taking through a mark ", take), good + good + good + "(" + take);
}

void add_floods(std::vector<Attack>& attacks) {
  const auto add = [&](const std::string& name, const std::string& body) { attacks.push_back({name, pickle(body)}); };
  const std::string good = dictionary(tensor());
  // Missing data, floods, depth.
  add("recall of nothing", "h\x07");
  add("long recall of nothing", "j" + little(0xffffffff, 4));
  add("memo at 4 billion", "}r" + little(0xffffffff, 4));
  add("text of 4 GiB", "X" + little(0xffffffff, 4));
  add("text of 2^63", "\x8d" + little(uint64_t{1} << 63, 8));
  add("text of 2^64-1", "\x8d" + little(~uint64_t{0}, 8));
  add("bytes of 2^63", "\x8e" + little(uint64_t{1} << 63, 8));
  add("bytearray of 2^62", "\x96" + little(uint64_t{1} << 62, 8));
  add("bytes of 4 GiB", "B" + little(0xffffffff, 4));
  add("string of -1", "T" + little(0xffffffff, 4));
  add("short text beyond the end", "\x8c\xff");
  add("integer of 255 bytes", "\x8a\xff");
  add("LONG4 of -1", "\x8b" + little(0xffffffff, 4));
  add("LONG4 of 2 GiB", "\x8b" + little(0x7fffffff, 4));
  add("frame of 2^64-1", "\x95" + little(~uint64_t{0}, 8));
  add("frame beyond the end", "\x95" + little(1000, 8) + good);
  add("100 000 marks", std::string(100'000, '('));
  add("1000 dictionaries deep", [] {
    std::string body = "}";
    for (int i = 0; i < 1000; ++i) body += text("k") + "}";
    body += text("w") + tensor() + "s";
    for (int i = 0; i < 1000; ++i) body += "s";
    return body;
  }());
  add("tuples 100 000 deep", tensor() + std::string(100'000, '\x85'));
  add("a list in itself", "]q\x01" + tensor() + "ah\x01" + "a");
  add("a dictionary in itself", "}q\x01" + text("w") + "h\x01s" + text("x") + tensor() + "s");
  add("lists that double", [] {
    std::string body = "(" + tensor() + std::string("\x85q\0", 3);
    for (char i = 1; i < 30; ++i) body += std::string("h") + static_cast<char>(i - 1) + "h" + static_cast<char>(i - 1) + "\x86q" + i;
    return body + "l";
  }());
  add("copies of a long list", [&] {
    std::string body = "](" + std::string(20'000, 'N') + "eq\x01";
    for (int i = 0; i < 20'000; ++i) body += global("torch", "Size") + "h\x01\x85R\x86";
    return body;
  }());
  add("4 million opcodes", std::string(4'000'000, 'N'));
  add("a million lists", std::string(1'000'000, ']'));
  add("200 000 tensors of one storage", [] {
    std::string body = "]" + global("torch._utils", "_rebuild_tensor_v2") + "q\x01" +
                       tuple(storage() + integer(0) + integers({2, 3}) + integers({3, 1}) + "\x89}") +
                       "q\x02\x86"
                       "a(";
    for (int i = 0; i < 200'000; ++i) body += "h\x01h\x02R";
    return body + "e";
  }());
}

void add_names(std::vector<Attack>& attacks) {
  const auto add = [&](const std::string& name, const std::string& body) { attacks.push_back({name, pickle(body)}); };
  // Names that look like allowed ones.
  for (const auto& [module, name] : std::vector<std::pair<std::string, std::string>>{{"torch._utils ", "_rebuild_tensor_v2"},
                                                                                     {" torch._utils", "_rebuild_tensor_v2"},
                                                                                     {"torch._utils\r", "_rebuild_tensor_v2"},
                                                                                     {"torch._utils", "_rebuild_tensor_v2\r"},
                                                                                     {"torch._Utils", "_rebuild_tensor_v2"},
                                                                                     {"t\xd0\xberch._utils", "_rebuild_tensor_v2"},
                                                                                     {"\xef\xbd\x8fs", "system"},
                                                                                     {"os\xe2\x80\xa8", "system"},
                                                                                     {"os\xc2\x85", "system"},
                                                                                     {std::string("os\0x", 4), "system"},
                                                                                     {"collections.abc", "OrderedDict"},
                                                                                     {"", "OrderedDict"},
                                                                                     {"collections", ""},
                                                                                     {"torch", "FloatStorage.__new__"},
                                                                                     {"torch", "storage"},
                                                                                     {"torch.cuda", "Size"},
                                                                                     {"torch", "floaT32"},
                                                                                     {"torch.torch", "float32"},
                                                                                     {std::string(100'000, 'o'), "s"},
                                                                                     {"os", std::string(100'000, 's')},
                                                                                     {"__main__", "Model"}}) {
    add(cat("name ", attacks.size()), global(module, name) + ")R");
  }
}

std::vector<Attack> attacks_by_form() {
  std::vector<Attack> attacks;
  for (const auto add : {add_opcodes, add_storages_and_sizes, add_misused_containers, add_floods, add_names}) add(attacks);
  return attacks;
}

TEST(Hostile, PicklesDoNothing) {
  const TemporaryFolder folder;
  const std::string victim = folder / "victim";
  // Negative control: the file from which all attacks are derived is accepted.
  ASSERT_EQ(refused_read(make_zip(archive(pickle(dictionary(tensor()))))), "");
  ASSERT_EQ(refused_read(make_zip(archive(pickle(tensor())))), "");

  std::vector<Attack> attacks = attacks_by_call(victim);
  for (Attack& attack : attacks_by_form()) attacks.push_back(std::move(attack));
  ASSERT_GE(attacks.size(), 300u);
  RecordProperty("attacks", static_cast<int>(attacks.size()));
  int refused = 0;
  for (const Attack& attack : attacks) {
    const std::string in_archive = refused_read(make_zip(archive(attack.data_pkl)));
    EXPECT_NE(in_archive, "") << attack.name;
    EXPECT_NE(in_archive, "unprintable") << attack.name;
    // The same in the older format, in place of each of its pickles.
    const std::string magic = pickle(std::string("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12)), version = pickle("M\xe9\x03"),
                      machine = pickle("}");
    const std::string rest = pickle("](" + text("0") + "e") + little(6, 8) + std::string(24, '\0');
    if (attack.data_pkl.size() < 100'000) {
      for (const std::string& file :
           {attack.data_pkl + version + machine, magic + version + attack.data_pkl, magic + version + machine + attack.data_pkl + rest}) {
        EXPECT_NE(refused_read(file), "") << attack.name << ", older form";
      }
    }
    refused += !in_archive.empty();
  }
  EXPECT_EQ(refused, static_cast<int>(attacks.size()));
  EXPECT_FALSE(std::filesystem::exists(victim));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Hostile, TheOlderFormsControl) {
  const std::string magic = pickle(std::string("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12)), version = pickle("M\xe9\x03"),
                    machine = pickle("}");
  const std::string object = pickle(dictionary(tensor())), keys = pickle("](" + text("0") + "e"),
                    values = little(6, 8) + std::string(24, '\0');
  EXPECT_EQ(refused_read(magic + version + machine + object + keys + values), "");
  EXPECT_NE(refused_read(magic + version + machine + object + pickle("]") + values), "") << "no storage is listed";
  EXPECT_NE(refused_read(magic + version + machine + object + pickle("](" + text("0") + text("0") + "e") + values + values), "")
      << "one is listed twice";
  EXPECT_NE(refused_read(magic + version + machine + object + keys + little(5, 8) + std::string(20, '\0')), "");
  EXPECT_NE(refused_read(magic + version + machine + object + keys + little(~uint64_t{0}, 8)), "");
  EXPECT_NE(refused_read(magic + version + machine + object + keys + values + "x"), "");
  EXPECT_NE(refused_read(magic + version + pickle("}" + text("little_endian") + "\x89s") + object + keys + values), "") << "big-endian";
  EXPECT_NE(refused_read(magic + pickle("M\xe8\x03") + machine + object + keys + values), "") << "another version";
}

TEST(Hostile, EveryCutOfATruePickleIsRefused) {
  const std::string whole = pickle(dictionary(tensor()));
  for (size_t cut = 0; cut < whole.size(); ++cut) EXPECT_NE(refused_read(make_zip(archive(whole.substr(0, cut)))), "") << cut;
  // Overwritten bytes: rejected or read as other data, never worse (the sanitizer build runs this too).
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = whole;
      changed[at] = static_cast<char>(value);
      refused_read(make_zip(archive(changed)));
    }
  }
}

TEST(Hostile, ArchivesThatLie) {
  const std::string good = pickle(dictionary(tensor()));
  const auto lie = [&](size_t entry, const std::function<void(Entry&)>& change) {
    std::vector<Entry> entries = archive(good);
    entries[entry].with(change);
    return make_zip(entries);
  };
  const auto renamed = [&](const std::string& name) { return lie(2, [&](Entry& e) { e.name = e.local_name = name; }); };
  const auto with_end = [&](const End& end) { return make_zip(archive(good), end); };
  std::vector<std::pair<std::string, std::string>> cases{
      {"another local name", lie(2, [](Entry& e) { e.local_name = "a/data/1"; })},
      {"another local size", lie(2, [](Entry& e) { e.local_size = 23; })},
      {"another local checksum", lie(2, [](Entry& e) { e.local_crc ^= 1; })},
      {"a wrong checksum of the pickle", lie(0, [](Entry& e) { e.crc = e.local_crc = e.crc ^ 1; })},
      {"compressed", lie(2, [](Entry& e) { e.method = 8; })},
      {"sizes that differ", lie(2, [](Entry& e) { e.stored = 20; })},
      {"encrypted", lie(2, [](Entry& e) { e.flags = e.local_flags = 1; })},
      {"flags that differ", lie(2, [](Entry& e) { e.local_flags = 0x800; })},
      {"a descriptor that is not there", lie(2, [](Entry& e) { e.flags = e.local_flags = 8; })},
      {"shorter than it is", lie(2, [](Entry& e) { e.size = e.stored = e.local_size = 20; })},
      {"longer than it is", lie(2, [](Entry& e) { e.size = e.stored = e.local_size = 28; })},
      {"longer than the file", lie(2, [](Entry& e) { e.size = e.stored = e.local_size = 0xfffffff0; })},
      {"64-bit size missing", lie(2, [](Entry& e) { e.size = e.stored = e.local_size = 0xffffffff; })},
      {"64-bit size of 2^63", lie(2,
                                  [](Entry& e) {
                                    e.size = e.stored = e.local_size = 0xffffffff;
                                    e.extra = e.local_extra =
                                        little(1, 2) + little(16, 2) + little(uint64_t{1} << 63, 8) + little(uint64_t{1} << 63, 8);
                                  })},
      {"64-bit size of 2^62", lie(2,
                                  [](Entry& e) {
                                    e.size = e.stored = e.local_size = 0xffffffff;
                                    e.extra = e.local_extra =
                                        little(1, 2) + little(16, 2) + little(uint64_t{1} << 62, 8) + little(uint64_t{1} << 62, 8);
                                  })},
      {"an extra field that leaves its header", lie(2, [](Entry& e) { e.extra = little(1, 2) + little(100, 2); })},
      {"an extra field of three bytes", lie(2, [](Entry& e) { e.local_extra = "abc"; })},
      {"padding that says something", lie(2, [](Entry& e) { e.local_extra = "FB" + little(4, 2) + "ZZaZ"; })},
      {"on top of another", lie(3, [](Entry& e) { e.offset_shift = -70; })},
      {"in the pickle", lie(3, [](Entry& e) { e.offset_shift = -120; })},
      {"at a place where nothing is", lie(3, [](Entry& e) { e.offset_shift = 1; })},
      {"bytes in front", with_end({.before = "#!/bin/sh\n"})},
      {"bytes between entries", lie(2, [](Entry& e) { e.data += "hidden"; })},
      {"bytes before the directory", with_end({.between = "hidden"})},
      {"a comment", with_end({.comment = "hello"})},
      {"one entry fewer", with_end({.count_shift = -1})},
      {"one entry more", with_end({.count_shift = 1})},
      {"65 000 entries", with_end({.count_shift = 65'000})},
      {"a directory one byte later", with_end({.offset_shift = 1})},
      {"a directory one byte shorter", with_end({.size_shift = -1})},
      {"two entries of one name", make_zip([&] {
         std::vector<Entry> entries = archive(good);
         entries.push_back(Entry("a/data/0", std::string(24, 'x')));
         return entries;
       }())},
      {"no pickle", make_zip({Entry("a/data/0", std::string(24, '\0'))})},
      {"a pickle in capitals", lie(0, [](Entry& e) { e.name = e.local_name = "a/DATA.PKL"; })},
      {"two folders", renamed("b/data/0")},
      {"big-endian", make_zip({Entry("a/data.pkl", good), Entry("a/byteorder", "big"), Entry("a/data/0", std::string(24, '\0'))})},
      {"no storage", make_zip({Entry("a/data.pkl", good)})},
      {"a storage that is too short", make_zip({Entry("a/data.pkl", good), Entry("a/data/0", std::string(20, '\0'))})},
      {"a storage that is too long", make_zip({Entry("a/data.pkl", good), Entry("a/data/0", std::string(28, '\0'))})},
      {"no entries", make_zip({})},
      {"a program", make_zip({Entry("a/data.pkl", good), Entry("a/data/0", std::string(24, '\0')), Entry("a/constants.pkl", good)})},
  };
  for (const char* name : {"../data/0", "a/../data/0", "/a/data/0", "a//data/0", "a/./data/0", "a\\data\\0", "C:/data/0", "", "a/data/0/",
                           "a/data/\n0", "a/data/0\x7f"}) {
    cases.push_back({cat("the name ", name), renamed(name)});
  }
  ASSERT_EQ(refused_read(make_zip(archive(good))), "");
  EXPECT_EQ(refused_read(lie(2, [](Entry& e) { e.local_extra = "FB" + little(4, 2) + "ZZZZ"; })), "") << "padding is valid";
  EXPECT_EQ(refused_read(lie(2,
                             [](Entry& e) {
                               e.size = e.stored = e.local_size = 0xffffffff;
                               e.extra = e.local_extra = little(1, 2) + little(16, 2) + little(24, 8) + little(24, 8);
                             })),
            "")
      << "64-bit sizes are valid";
  for (const auto& [name, file] : cases) EXPECT_NE(refused_read(file), "") << name;
}

TEST(Hostile, ManyTensorsOfOneStorageAreNotADiskFull) {
  // 1000 names for the same 24 bytes: 1000 times the file's values.
  std::string body = "}(";
  for (int i = 0; i < 1000; ++i) body += text(cat("w", i)) + tensor();
  EXPECT_NE(refused_read(make_zip(archive(pickle(body + "u")))).find("share values"), std::string::npos);
}

/// A line of /proc/self/status in KiB: VmRSS (resident now) or VmHWM (its high-water mark).
int64_t status_kib(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == key + ":" && status >> kib) return kib;
  }
  return -1;
}

TEST(Hostile, MemoryStaysBounded) {
#if GALLEY_ASAN
  GTEST_SKIP() << "AddressSanitizer keeps freed memory";
#endif
  std::vector<std::string> files;
  for (const Attack& attack : attacks_by_form()) files.push_back(make_zip(archive(attack.data_pkl)));
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the mark
  const int64_t before = status_kib("VmRSS");
  ASSERT_GT(before, 0);
  for (const std::string& file : files) refused_read(file);
  EXPECT_LT(status_kib("VmHWM") - before, (64 + 2 * 4) * 1024) << "64 MiB and twice the largest attack, which has 4 MB";
}

}  // namespace
}  // namespace galley

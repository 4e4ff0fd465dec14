#include "traceap/analysis/dependencies/blocked_frames.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "traceap/base/interrupt.hpp"
#include "traceap/base/text.hpp"

namespace traceap {
namespace {

struct FileFunctions {
  std::string_view file;  ///< the last parts of its path
  std::initializer_list<std::string_view> functions;
};

const std::array<FileFunctions, 14>& blocking_functions() {
  static const std::array<FileFunctions, 14> kKnown{{
      {"threading.py",
       {"wait", "wait_for", "join", "_join_timeout", "acquire", "__enter__",
        "_wait_for_tstate_lock"}},
      {"queue.py", {"get", "put", "join"}},
      {"multiprocessing/queues.py", {"get", "put"}},
      {"multiprocessing/connection.py",
       {"accept", "poll", "_poll", "recv", "_recv", "recv_bytes", "_recv_bytes", "wait"}},
      {"multiprocessing/process.py", {"join"}},
      {"multiprocessing/popen_fork.py", {"poll", "wait"}},
      {"multiprocessing/popen_forkserver.py", {"poll", "wait"}},
      {"multiprocessing/synchronize.py", {"wait", "wait_for", "__enter__"}},
      {"selectors.py", {"select"}},
      {"socket.py", {"accept", "readinto"}},
      {"socketserver.py", {"serve_forever", "get_request"}},
      {"ssl.py", {"read", "recv", "recv_into"}},
      {"subprocess.py", {"wait", "_wait", "_try_wait", "communicate", "_communicate"}},
      {"concurrent/futures/_base.py", {"result", "exception", "wait"}},
  }};
  return kKnown;
}

/// Functions of C that block, and what the name says of their object or module; empty: any.
struct BuiltIn {
  std::string_view function, of;
};
constexpr std::array<BuiltIn, 19> kBuiltIns{{
    {"acquire", "lock"},
    {"acquire", "Lock"},
    {"acquire", "SemLock"},
    {"__enter__", "lock"},
    {"__enter__", "RLock"},
    {"__enter__", "SemLock"},
    {"join", "_ThreadHandle"},
    {"get", "SimpleQueue"},
    {"sleep", ""},
    {"select", ""},
    {"poll", ""},
    {"epoll_wait", ""},
    {"control", "kqueue"},
    {"accept", "socket"},
    {"_accept", "socket"},
    {"recv", "socket"},
    {"recv_into", "socket"},
    {"waitpid", ""},
    {"wait4", ""},
}};

/// Is `file` the end of a path, whichever way its separators lean?
bool ends_with_path(std::string_view path, std::string_view file) {
  if (path.size() < file.size()) return false;
  const auto unify = [](char c) { return c == '\\' ? '/' : c; };
  const std::string_view end = path.substr(path.size() - file.size());
  const bool equal = std::equal(end.begin(), end.end(), file.begin(),
                                [&](char a, char b) { return unify(a) == b; });
  return equal && (path.size() == file.size() || unify(path[path.size() - file.size() - 1]) == '/');
}

/// "path.py(12): function".
bool is_blocking_function(std::string_view name) {
  const std::size_t line = name.rfind(".py(");
  if (line == std::string_view::npos) return false;
  const std::size_t colon = name.find("): ", line);
  if (colon == std::string_view::npos) return false;
  const std::string_view path = name.substr(0, line + 3), function = name.substr(colon + 3);
  for (const FileFunctions& known : blocking_functions()) {
    if (!ends_with_path(path, known.file)) continue;
    return std::find(known.functions.begin(), known.functions.end(), function) !=
           known.functions.end();
  }
  return false;
}

/// "<built-in function sleep>", "<built-in method acquire of _thread.lock object at 0x7f00>",
/// "<method 'acquire' of '_thread.lock' objects>".
bool is_blocking_built_in(std::string_view name) {
  for (const std::string_view form : {"<built-in function ", "<built-in method ", "<method "}) {
    if (!name.starts_with(form)) continue;
    std::string_view rest = name.substr(form.size());
    const std::size_t end = rest.find_first_of(" >");
    if (end == std::string_view::npos) return false;
    std::string_view function = rest.substr(0, end);
    while (function.starts_with('\'')) function.remove_prefix(1);
    while (function.ends_with('\'')) function.remove_suffix(1);
    const std::string_view of = rest.substr(end);
    return std::any_of(kBuiltIns.begin(), kBuiltIns.end(), [&](const BuiltIn& known) {
      return function == known.function && contains(of, known.of);
    });
  }
  return false;
}

}  // namespace

bool is_blocking_frame(std::string_view name) {
  return name.starts_with('<') ? is_blocking_built_in(name) : is_blocking_function(name);
}

BlockedFrames::BlockedFrames(const EventTable& table, const EventTree& tree) : tree_(tree) {
  std::vector<std::uint8_t> blocks(table.strings.size());
  bool any = false;
  for (StringId id = 0; id < table.strings.size(); ++id) {
    poll_interrupt();
    any |= (blocks[id] = is_blocking_frame(table.strings[id])) != 0;
  }
  if (!any) return;
  blocked_.resize(table.size(), 0);
  for (const Row row : tree.host_rows) {  // a parent stands before its children
    poll_interrupt();
    const Row parent = tree.parent[row];
    const bool own = table.kind[row] == EventKind::kPythonFunction && blocks[table.name[row]];
    blocked_[row] = own || (parent != kNoRow && blocked_[parent]);
  }
}

bool BlockedFrames::only_blocks(std::uint32_t position) const {
  if (!any()) return false;
  // What is innermost does the work: a frame without children that isn't blocked has some.
  const std::uint32_t end = tree_.subtree_end[position];
  for (std::uint32_t i = position; i < end; ++i) {
    if (tree_.subtree_end[i] == i + 1 && !blocked_[tree_.host_rows[i]]) return false;
  }
  return true;
}

}  // namespace traceap

"""Explanations of the fields on the screen."""

# ruff: noqa: RUF001  (a row is a line, and Chinese has its own marks)

from __future__ import annotations

_ENTRIES: tuple[tuple[str, str, str], ...] = (
    ("host", "a machine that takes part", "参与运行的一台机器"),
    ("proc", "a process of a mesh, or the client: the program itself", "网格中的一个进程，或客户端（程序本身）"),
    ("actor", "an object with a mailbox in a proc; name[rank]", "进程中带有邮箱的对象；名称[序号]"),
    ("system", "the runtime's own actors; s shows them", "运行时自身的 Actor；按 s 显示"),
    (
        "stopped",
        "actors that have ended; h shows the last of them. Failed ones are always shown",
        "已结束的 Actor；按 h 显示。失败的始终显示",
    ),
    ("[error]", "a process that has ended, does not answer, or starts", "已结束、无应答或正在启动的进程"),
    (
        "POISONED",
        "the mesh's bootstrap function raised: nothing can be spawned there",
        "引导函数抛出异常：无法在其中创建 Actor",
    ),
    (
        "right column",
        "the endpoint that has been running longest, for how long, → what it waits for",
        "运行最久的端点、时长，→ 其等待的对象",
    ),
    (
        "Status",
        "created, initializing, idle, processing, stopping, stopped, failed; zombie: given up on, still running",
        "状态；zombie：已放弃但仍在运行",
    ),
    (
        "Queue depth",
        "messages that wait in mailboxes now; peak: the most at once so far",
        "邮箱中等待的消息数；peak：历史最大值",
    ),
    ("Last busy", "since a message was last taken from a mailbox", "上次从邮箱取出消息至今"),
    ("Messages", "messages handled so far", "已处理的消息数"),
    ("Processing time", "time in endpoints so far, awaiting included", "在端点中的累计时间（含 await）"),
    (
        "Waits for",
        "the call that it waits for: mesh.endpoint, and of how many ranks",
        "正在等待的调用：网格.端点，及剩余的序号数",
    ),
    (
        "Execution",
        "endpoints that run now, oldest first; ×n: so many calls of it",
        "正在执行的端点，最久的在前；×n 为调用数",
    ),
    (
        "Inbound ordering",
        "senders of which messages wait for earlier ones that have not come",
        "消息正在等待更早消息到达的发送者",
    ),
    ("Need seq", "the number of the message that is awaited", "正在等待的消息序号"),
    ("Root cause", "what failed first; Enter goes there", "最先失败的对象；按 Enter 跳转"),
    ("Propagated", "it failed because another actor did", "因其他 Actor 失败而失败"),
    ("Flight recorder", "the last events of the actor, as its process noted them", "进程记录的该 Actor 的最近事件"),
    ("RSS", "memory that is really in use", "实际占用的内存"),
)


def entries(language: str = "en") -> list[tuple[str, str]]:
    return [(name, zh if language == "zh" else en) for name, en, zh in _ENTRIES]


_KEYS: tuple[tuple[str, str], ...] = (
    ("j k ↓ ↑", "move"),
    ("g G Home End", "first, last row"),
    ("PgUp PgDn Ctrl-U Ctrl-D", "a page"),
    ("t", "ranks, tree: the one, then the other"),
    ("N T P M U S", "ranks by name, time, processor, memory, GPU, state; once more: the other way round"),
    ("Enter", "ranks: stacks. Tree, of a failed actor: go to the root cause; else expand, collapse"),
    ("Tab", "tree: expand, collapse"),
    ("c", "tree: collapse all"),
    ("/", "filter; Esc ends it"),
    ("s h", "show system actors, stopped actors"),
    ("d", "diagnostics: asks every node, and says how long each took"),
    ("p", "stacks of the process"),
    ("l", "its last lines"),
    ("m", "metrics: curves of what the program logs by monarch.metrics.log"),
    ("b", "debugger: attaches to the rank where it stands at a breakpoint; else says how"),
    ("C", "settings of the process"),
    ("v", "services: their replicas, with outstanding requests, latency, batches, version"),
    ("[ ]", "scroll the details"),
    ("Ctrl-L", "the selected row to the top"),
    ("q Ctrl-C", "quit"),
)


def keys() -> list[tuple[str, str]]:
    return list(_KEYS)

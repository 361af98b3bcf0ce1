"""The words of the screen in the languages that it speaks. Field names of the API, references and errors stay as they are."""

# ruff: noqa: RUF001  (a row is a line, and Chinese has its own marks)

from __future__ import annotations

LANGUAGES = ("en", "zh")

_ZH = {
    "Hosts": "主机",
    "Started by": "启动者",
    "Uptime": "运行时间",
    "Started at": "启动时间",
    "Data as of": "数据时间",
    "Address": "地址",
    "Host": "主机",
    "Procs": "进程",
    "RSS": "常驻内存",
    "VM size": "虚拟内存",
    "Memory": "内存",
    "Load": "负载",
    "Name": "名称",
    "Mesh": "网格",
    "State": "状态",
    "Pid": "进程号",
    "Actors": "Actor",
    "Queue depth": "队列深度",
    "Peak depth": "峰值深度",
    "Last busy": "上次繁忙",
    "now": "现在",
    "{0} wrong": "{0} 处异常",
    "Poisoned": "已中毒",
    "Failed actors": "失败的 Actor",
    "Status": "状态",
    "Services": "服务",
    "Instance": "实例",
    "Type": "类型",
    "Messages": "消息数",
    "Processing time": "处理时间",
    "Created": "创建时间",
    "Last handler": "最近的端点",
    "Waits for": "等待",
    "Children": "子节点",
    "Error": "错误",
    "Root cause": "根本原因",
    "Failed at": "失败时间",
    "Propagated": "由其他 Actor 引起",
    "Inbound ordering": "入站排序",
    "Execution": "执行",
    "Flight recorder": "飞行记录",
    "Owner": "发送者",
    "Need seq": "所需序号",
    "Buffered": "已缓存",
    "Command": "命令",
    "Code": "代码",
    "Silent": "无应答",
    "Problem": "问题",
    "yes": "是",
    "no": "否",
    "never": "从不",
    "ago": "前",
    "on": "开",
    "off": "关",
    "system": "系统",
    "stopped": "已停止",
    "failed": "失败",
    "user": "用户",
    "up": "运行",
    "sys": "系统",
    "nothing runs": "没有正在执行的端点",
    "in order": "顺序正常",
    "and {0} more": "还有 {0} 个",
    "filter": "过滤",
    "Diagnostics": "诊断",
    "Stacks": "调用栈",
    "Settings": "配置",
    "Output": "输出",
    "logs": "日志",
    "ranks": "进程",
    "Metrics": "指标",
    "metrics": "指标",
    "Debugger": "调试器",
    "debug": "调试",
    "Glossary": "术语表",
    "Connecting to {0} ...": "正在连接 {0} ...",
    "content hidden — resize": "内容已隐藏 — 请调整窗口大小",
    "waiting for an answer": "等待应答",
    "close": "关闭",
    "again": "重新执行",
    "move": "移动",
    "expand": "展开",
    "stacks": "调用栈",
    "settings": "配置",
    "diagnostics": "诊断",
    "help": "帮助",
    "quit": "退出",
    "root cause": "根本原因",
    "all passed": "全部通过",
    "healthy": "正常",
    "failing": "有故障",
    "n/a": "无",
    "oldest endpoint": "最久的端点",
    "actor selected, its process is shown": "所选为 Actor，显示其进程",
}


class Words:
    """Called with an English word or text, gives that of the language."""

    def __init__(self, language: str = "en") -> None:
        if language not in LANGUAGES:
            raise ValueError(f"the screen speaks {', '.join(LANGUAGES)}, not {language!r}")
        self.language = language
        self._words = _ZH if language == "zh" else {}

    def __call__(self, text: str, *values: object) -> str:
        found = self._words.get(text, text)
        return found.format(*values) if values else found

from monarch.actor import WouldBlockRuntime as WouldBlockRuntime

"""Chat templates in the manner of well-known models, in few words."""

TOOLS_IN_SYSTEM = (
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n"
    "{% endif %}Functions, called in <tool_call></tool_call>:\n"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n"
    "{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n"
    "THOUGHT{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{% if m.content or not loop.first %}\n{% endif %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n"
    "{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "<|im_end|>\n"
    "{% elif m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nBEGIN{% endif %}"
)
QWEN = TOOLS_IN_SYSTEM.replace("THOUGHT", "").replace("BEGIN", "")
"""As Qwen 2.5 and Hermes."""
THINKING = TOOLS_IN_SYSTEM.replace("THOUGHT", "{% if loop.last %}<think>\n\n</think>\n\n{% endif %}").replace(
    "BEGIN", "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
"""As Qwen 3: a thought that can be switched off."""
ALWAYS_THINKING = TOOLS_IN_SYSTEM.replace("THOUGHT", "").replace("BEGIN", "<think>\n")
"""As QwQ and R1: the prompt begins the thought."""
LLAMA = (
    "{% for m in messages %}{% if loop.first and tools %}<|im_start|>environment\n"
    "{% for t in tools %}{{ t.function | tojson }}\n{% endfor %}<|im_end|>{% endif %}"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}"
    "{% endif %}<|im_start|>assistant\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "<|im_end|>{% else %}<|im_start|>{{ 'ipython' if m.role == 'tool' else m.role }}\n\n"
    "{{ m.content | trim }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
"""As Llama 3.1: calls are JSON and nothing else, one in a reply."""
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.first %}[AVAILABLE_TOOLS]"
    "{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}{% if not m.tool_call_id %}{{ raise_exception('no id') }}{% endif %}"
    '[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% elif m.role == 'assistant' %}{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{{ '' if loop.last else ', ' }}{% endfor %}]{% else %}{{ m.content }}{% endif %}<|im_end|>"
    "{% else %}{{ raise_exception('no ' + m.role) }}{% endif %}{% endfor %}"
)
"""As Mistral: no system role, results refer to calls by an id of nine letters."""
ALL = {"qwen": QWEN, "thinking": THINKING, "always": ALWAYS_THINKING, "llama": LLAMA, "mistral": MISTRAL}

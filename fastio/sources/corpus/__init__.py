"""Token files of Megatron, llm.c and nanoGPT as datasets of documents, without packing them."""

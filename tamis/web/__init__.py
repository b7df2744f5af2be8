"""From the web to text: what crawled pages, wikis, papers and other documents say."""

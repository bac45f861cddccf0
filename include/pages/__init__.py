"""Pages inside Airflow's UI: a small FastAPI app behind Airflow's login. It only reads, and imports no Airflow.

To add a page `name`:

1. `registry.py`: one `Page(name, title, module, ...)` in `PAGES`. The plugin makes its entry in the navigation of it.
2. The module: `read(asked: Asked) -> dict[str, Any]` gives the values of the template. It reads the ledger through
   `asked.site.ledger` with bounded queries, and its parameters through `asked.text`, `asked.day` and `asked.whole`.
3. `templates/name.html`: extends `shell.html`; `block controls` is drawn once, `block live` is replaced while the page
   is open, every `every` seconds (a value that `read` may give; 15 by default). Tables have a caption.
4. A chart is a figure that `charts.py` makes: `{{ parts.chart(figure, "What it shows") }}`, and
   `charts=True` in the registry. Colours of ground, text and axes come from the page.
5. Links are relative; `addresses.py` makes them. One to Airflow is drawn by `parts.outward`, times by `parts.at`.
"""

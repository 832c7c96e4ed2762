//! Hit rates over capacities as an SVG picture, for pages in a light and in a dark theme.
//!
//! Everything is in the file: no fonts, scripts or pictures from elsewhere. Colours come in two sets that
//! the viewer's theme chooses between; lines differ by their markers, too, for those who cannot tell the
//! colours apart.

use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
/// The area between the axes.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 400.0;
/// Where the legend begins, and the distance of its lines.
const LEGEND: f64 = 718.0;
const LEGEND_STEP: f64 = 24.0;
/// Lines of a grid at most.
const GRID_MAX: f64 = 8.0;

const STYLE: &str = "\
<style>
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .small { font-size: 12px; fill: #59636e; }
  .paper { fill: #ffffff; } .grid { stroke: #d1d9e0; } .axis { stroke: #59636e; }
  .line { fill: none; stroke-width: 2; } .mark { stroke-width: 2; }
  .c0 { stroke: #1f2328; } .c1 { stroke: #0072b2; } .c2 { stroke: #d55e00; } .c3 { stroke: #009e73; }
  .c4 { stroke: #b0559a; } .c5 { stroke: #a67c00; } .c6 { stroke: #6a6ad4; } .c7 { stroke: #c02942; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .small { fill: #9198a1; }
    .paper { fill: #0d1117; } .grid { stroke: #2f353d; } .axis { stroke: #9198a1; }
    .c0 { stroke: #f0f6fc; } .c1 { stroke: #56b4e9; } .c2 { stroke: #ff8b4d; } .c3 { stroke: #2fd0a0; }
    .c4 { stroke: #e69bd3; } .c5 { stroke: #f0c430; } .c6 { stroke: #a5a5ff; } .c7 { stroke: #ff7b8a; }
  }
</style>
";

/// One line of a plot.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Hit rates from 0 to 1, one per capacity of the plot.
    pub rates: Vec<f64>,
    /// Whether it is the bound: dashed, in the colour of the text.
    pub is_bound: bool,
}

/// Hit rates over capacities.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What is shown.
    pub title: String,
    /// Where it comes from, in smaller letters.
    pub subtitle: String,
    /// What a capacity counts, with its unit.
    pub x_label: String,
    /// Capacities in blocks, ascending.
    pub capacities: Vec<u32>,
    /// The same in words that stand below them, such as bytes.
    pub sizes: Vec<String>,
    /// The lines.
    pub series: Vec<Series>,
}

impl Plot {
    /// The picture.
    pub fn svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" role=\"img\">\n<title>{}</title>\n{STYLE}",
            escape(&self.title),
        );
        line(&mut svg, &format!("<rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>"));
        text(&mut svg, LEFT, 28.0, "class=\"title\"", &self.title);
        text(&mut svg, LEFT, 48.0, "class=\"small\"", &self.subtitle);
        let top_percent = self.grid(&mut svg);
        self.x_axis(&mut svg);
        for (index, series) in self.series.iter().enumerate() {
            self.draw(&mut svg, index, series, top_percent);
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Horizontal lines at round percentages; the highest of them.
    fn grid(&self, svg: &mut String) -> f64 {
        let rates = self.series.iter().flat_map(|series| &series.rates);
        let most = 100.0 * rates.fold(0.0, |most: f64, rate| most.max(*rate));
        let steps = [1.0, 2.0, 5.0, 10.0, 20.0];
        let step = steps.into_iter().find(|step| most / step <= GRID_MAX).unwrap_or(25.0);
        let count = (most / step).ceil().max(1.0);
        let mut at = 0.0;
        while at <= count {
            let (y, percent) = (BOTTOM - at / count * (BOTTOM - TOP), at * step);
            let class = if at > 0.0 { "grid" } else { "axis" };
            let ends = format!("x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"");
            line(svg, &format!("<line class=\"{class}\" {ends}/>"));
            let place = "text-anchor=\"end\"";
            text(svg, LEFT - 8.0, y + 4.0, place, &format!("{percent:.0}"));
            at += 1.0;
        }
        let middle = f64::midpoint(TOP, BOTTOM);
        let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 18 {middle})\"");
        text(svg, 18.0, middle, &turned, "blocks found, % of those asked for");
        count * step
    }

    fn x_axis(&self, svg: &mut String) {
        let place = "text-anchor=\"middle\"";
        for (capacity, size) in self.capacities.iter().zip(&self.sizes) {
            let x = self.x(*capacity);
            let ends =
                format!("x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{BOTTOM}\" y2=\"{}\"", BOTTOM + 5.0);
            line(svg, &format!("<line class=\"axis\" {ends}/>"));
            text(svg, x, BOTTOM + 20.0, place, &capacity.to_string());
            text(svg, x, BOTTOM + 36.0, &format!("class=\"small\" {place}"), size);
        }
        text(svg, f64::midpoint(LEFT, RIGHT), BOTTOM + 62.0, place, &self.x_label);
    }

    /// Where a capacity stands on the logarithmic axis.
    fn x(&self, capacity: u32) -> f64 {
        let log = |capacity: u32| f64::from(capacity).log2();
        let (first, last) = match self.capacities.as_slice() {
            [first, .., last] => (log(*first), log(*last)),
            _ => return f64::midpoint(LEFT, RIGHT),
        };
        // The outermost points keep some distance from the frame.
        let (from, to) = (LEFT + 16.0, RIGHT - 24.0);
        from + (log(capacity) - first) / (last - first) * (to - from)
    }

    fn draw(&self, svg: &mut String, index: usize, series: &Series, top_percent: f64) {
        let color = if series.is_bound { 0 } else { 1 + index % 7 };
        let dash = if series.is_bound { " stroke-dasharray=\"6 4\"" } else { "" };
        let points: Vec<(f64, f64)> = self
            .capacities
            .iter()
            .zip(&series.rates)
            .map(|(capacity, rate)| {
                let part = 100.0 * rate / top_percent;
                (self.x(*capacity), BOTTOM - part * (BOTTOM - TOP))
            })
            .collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let path = path.join(" ");
        line(svg, &format!("<polyline class=\"line c{color}\"{dash} points=\"{path}\"/>"));
        for (x, y) in points {
            line(svg, &marker(color, x, y));
        }
        #[expect(clippy::cast_precision_loss, reason = "a handful of lines")]
        let y = TOP + 10.0 + index as f64 * LEGEND_STEP;
        let ends = format!("x1=\"{LEGEND}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"", LEGEND + 28.0);
        line(svg, &format!("<line class=\"line c{color}\"{dash} {ends}/>"));
        line(svg, &marker(color, LEGEND + 14.0, y));
        text(svg, LEGEND + 36.0, y + 4.0, "", &series.name);
    }
}

/// A small shape around a point: each colour has its own.
fn marker(color: usize, x: f64, y: f64) -> String {
    let path = match color {
        0 => "m-3,0h6".to_owned(),
        1 => "m-3.5,-3.5h7v7h-7z".to_owned(),
        2 => "m0,-4.5l4,7.5h-8z".to_owned(),
        3 => "m0,-4.5l4.5,4.5l-4.5,4.5l-4.5,-4.5z".to_owned(),
        4 => "m-3.5,-3.5l7,7m0,-7l-7,7".to_owned(),
        5 => "m-4.5,0h9m-4.5,-4.5v9".to_owned(),
        6 => "m0,4.5l4,-7.5h-8z".to_owned(),
        _ => "m-4,0l2,-3.5h4l2,3.5l-2,3.5h-4z".to_owned(),
    };
    format!("<path class=\"mark paper c{color}\" d=\"M{x:.1},{y:.1}{path}\"/>")
}

fn line(svg: &mut String, what: &str) {
    svg.push_str(what);
    svg.push('\n');
}

fn text(svg: &mut String, x: f64, y: f64, attributes: &str, words: &str) {
    let words = escape(words);
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{words}</text>");
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(capacities: Vec<u32>) -> Plot {
        let rates = |of: f64| capacities.iter().map(|c| of * f64::from(*c) / 64.0).collect();
        let series =
            |name: &str, of, is_bound| Series { name: name.into(), rates: rates(of), is_bound };
        Plot {
            title: "a <b> & c".into(),
            subtitle: "from here".into(),
            x_label: "blocks".into(),
            sizes: capacities.iter().map(|c| format!("{c} MiB")).collect(),
            series: vec![series("optimal", 0.4, true), series("lru", 0.3, false)],
            capacities,
        }
    }

    /// Equal factors are equal distances, names are in the legend, and text cannot break the markup.
    #[test]
    fn a_plot_has_a_log_axis_a_legend_and_both_themes() {
        let plot = plot(vec![16, 32, 64]);
        let svg = plot.svg();
        let (a, b, c) = (plot.x(16), plot.x(32), plot.x(64));
        assert!((b - a - (c - b)).abs() < 1e-9 && a > LEFT && c < RIGHT);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("stroke-dasharray").count(), 2, "the bound and its legend");
        for part in [
            "a &lt;b&gt; &amp; c",
            ">lru</text>",
            ">optimal</text>",
            ">32</text>",
            ">32 MiB</text>",
            "prefers-color-scheme: dark",
            ">40</text>",
        ] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    }

    #[test]
    fn one_capacity_and_no_hits_make_a_plot_too() {
        let mut plot = plot(vec![64]);
        plot.series.iter_mut().for_each(|series| series.rates = vec![0.0]);
        let svg = plot.svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
